-- regroup: makes a group again that vanished while workers ran, only where nothing is lost by it.
-- KEYS 1 stream 2 floor · ARGV 1 group 2 waiting group
-- Answers {"there", ""} (somebody was quicker), {"made", id it starts after}, or {"unknown", ""}: the stream has
--   messages and no floor was kept, so nobody knows which of them are done.
-- Safe to repeat: the second time it is "there". One XGROUP CREATE, so there is no half-way.
local stream, floor, group, waiting_group = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local start = '0-0'
if redis.call('EXISTS', stream) == 1 then
  local waiting_is_there = false
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    if info[2] == group then return {'there', ''} end
    if info[2] == waiting_group then waiting_is_there = true end
  end
  if redis.call('XLEN', stream) > 0 then
    local note = redis.call('GET', floor)
    if not note then return {'unknown', ''} end
    local without_waiting, with_waiting = string.match(note, '^(%S+) (%S+)$')
    start = waiting_is_there and without_waiting or with_waiting
  end
end
redis.call('XACK', stream, group, '0-0') -- changes nothing; under maxmemory it lets XGROUP through
redis.call('XGROUP', 'CREATE', stream, group, start, 'MKSTREAM')
return {'made', start}
