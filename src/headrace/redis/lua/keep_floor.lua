-- keep_floor: notes where a vanished group would have to go on: just below its lowest unfinished id.
-- KEYS 1 stream 2 floor · ARGV 1 group 2 waiting group
-- Answers the note: "<floor without what waits> <floor with it>"; regroup.lua takes the second if both groups vanished.
-- Safe to repeat. One SET, so there is no half-way. Without the group it is an error (NOGROUP), and the note stays.
local stream, floor, group, waiting_group = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

-- decimal digits minus one: ids have 64 bits, Lua's numbers 53
local function one_less(digits)
  local head, last, zeros = string.match(digits, '^(%d-)([1-9])(0*)$')
  return (string.gsub(head .. (tonumber(last) - 1) .. string.rep('9', #zeros), '^0+(%d)', '%1'))
end
local function below(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  if seq ~= '0' then return ms .. '-' .. one_less(seq) end
  return one_less(ms) .. '-18446744073709551615'
end
local function is_lower(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then a_seq, b_seq = a_ms, b_ms end
  return #a_seq < #b_seq or (#a_seq == #b_seq and a_seq < b_seq)
end

local pending = redis.call('XPENDING', stream, group)
local lowest, waits
for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local about = {}
  for i = 1, #info, 2 do about[info[i]] = info[i + 1] end
  if about.name == group then lowest = about['last-delivered-id'] end
  if about.name == waiting_group and about.pending > 0 then
    waits = below(redis.call('XPENDING', stream, waiting_group)[2])
  end
end
if pending[1] > 0 and is_lower(below(pending[2]), lowest) then lowest = below(pending[2]) end
if not waits or is_lower(lowest, waits) then waits = lowest end

redis.call('XACK', stream, group, '0-0') -- changes nothing; under maxmemory it lets SET through
local note = lowest .. ' ' .. waits
redis.call('SET', floor, note)
return note
