-- Trims a stream up to what every one of its groups has read and finished, and never beyond the id it is given.
-- KEYS 1 stream · ARGV 1 the id read up to; its entry stays, as the witness that nothing behind it was trimmed
-- Returns how many entries were removed; 0 if the stream is gone.
-- Safe to repeat. It is one command of the server's: nothing can be half done, and a group made later finds what is left.
local function below(left, right)
  local left_ms, left_seq = string.match(left, '^(%d+)-(%d+)$')
  local right_ms, right_seq = string.match(right, '^(%d+)-(%d+)$')
  if #left_ms ~= #right_ms then return #left_ms < #right_ms end
  if left_ms ~= right_ms then return left_ms < right_ms end
  if #left_seq ~= #right_seq then return #left_seq < #right_seq end
  return left_seq < right_seq
end

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local floor = ARGV[1]
for _, row in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local group = {}
  for at = 1, #row, 2 do group[row[at]] = row[at + 1] end
  if below(group['last-delivered-id'], floor) then floor = group['last-delivered-id'] end
  local lowest = redis.call('XPENDING', KEYS[1], group['name'])[2]
  if lowest and below(lowest, floor) then floor = lowest end
end
return redis.call('XTRIM', KEYS[1], 'MINID', '=', floor)
