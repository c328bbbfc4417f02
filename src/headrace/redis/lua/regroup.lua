-- regroup: makes a group again that vanished while workers ran, only where nothing is lost by it.
-- KEYS 1 stream 2 floor 3 due set · ARGV 1 group 2 waiting group
-- Answers {"there", ""} (somebody was quicker), {"made", id it starts after}, or {"unknown", ""}: the stream has
--   messages and no floor was kept, so nobody knows which of them are done.
-- Safe to repeat: the second time it is "there". What waited is forgotten only where it is delivered anew.
local stream, floor, due_set, group, waiting_group = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]

local start, waiting_is_there = '0-0', false
if redis.call('EXISTS', stream) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    if info[2] == group then return {'there', ''} end
    if info[2] == waiting_group then waiting_is_there = true end
  end
  if redis.call('XLEN', stream) > 0 then
    local note = redis.call('GET', floor)
    local without_waiting, with_waiting = string.match(note or '', '^(%d+%-%d+) (%d+%-%d+)$')
    if not with_waiting then return {'unknown', ''} end -- no note, or none of ours
    start = waiting_is_there and without_waiting or with_waiting
    local is_id = redis.pcall('XRANGE', stream, start, start, 'COUNT', 1)
    if is_id.err and string.find(is_id.err, 'Invalid stream ID', 1, true) then return {'unknown', ''} end
  end
end
redis.call('XACK', stream, group, '0-0') -- changes nothing; under maxmemory it lets XGROUP through
redis.call('XGROUP', 'CREATE', stream, group, start, 'MKSTREAM')
-- the waiting group went too: what it held is after the start, so it comes by itself and must not come twice
local ids = waiting_is_there and {} or redis.call('ZRANGE', due_set, 0, -1)
for i = 1, #ids, 1000 do redis.call('ZREM', due_set, unpack(ids, i, math.min(i + 999, #ids))) end
return {'made', start}
