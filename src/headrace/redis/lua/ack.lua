-- ack: ends deliveries that are done, each only if (owner, count) still holds in the pending list.
-- KEYS 1 stream · ARGV 1 group 2 owner 3 delete: no, acked, sole 4 waiting group 5 lowest ms 6 highest ms 7 the count
--   of all and 8.. id, or 7 "" and 8.. id, count
-- Answers how many, if all are "ok"; else a word each: "ok", "gone" or "taken <owner> <count>".
-- Safe to repeat: the second time they are "gone". One XACK for all, so there is no half-way.
local stream, group, owner, delete, waiting_group = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- One look at the owner's entries between the lowest and the highest id finds most of a batch. Whatever it missed
-- (others in between, bounds too narrow) is asked for alone: the range is speed, never truth.
local count_of_all = tonumber(ARGV[7])
local words_each = count_of_all and 1 or 2
local given, held = (#ARGV - 7) / words_each, {}
if given > 4 then
  local most = given + math.floor(given / 2) + 8
  for _, row in ipairs(redis.call('XPENDING', stream, group, ARGV[5], ARGV[6], most, owner)) do
    held[row[1]] = row[4]
  end
end

local words, done = {}, {}
for i = 8, #ARGV, words_each do
  local id, count, word = ARGV[i], count_of_all or tonumber(ARGV[i + 1]), 'ok'
  if held[id] ~= count then
    local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
    if not row then
      word = 'gone'
    elseif row[2] ~= owner or row[4] ~= count then
      word = 'taken ' .. row[2] .. ' ' .. string.format('%.0f', row[4])
    end
  end
  if word == 'ok' then done[#done + 1] = id end
  words[#words + 1] = word
end
if #done == 0 then return words end

if delete == 'acked' then
  -- the only form of XACKDEL that leaves what another group has not finished
  redis.call('XACKDEL', stream, group, 'ACKED', 'IDS', #done, unpack(done))
else
  redis.call('XACK', stream, group, unpack(done))
end
if delete == 'sole' then
  -- only if no group but this one and its waiting group could still want it, and it does not wait there
  local others, waits = 0, 0
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    if info[2] == waiting_group then
      waits = redis.call('XPENDING', stream, waiting_group)[1]
    elseif info[2] ~= group then
      others = others + 1
    end
  end
  for _, done_id in ipairs(others == 0 and done or {}) do
    if waits == 0 or #redis.call('XPENDING', stream, waiting_group, done_id, done_id, 1) == 0 then
      redis.call('XDEL', stream, done_id)
    end
  end
end

if #done == #words then return #done end
return words
