-- renew: resets the idle clock of deliveries, each only if (owner, count) still holds. Never steals one back.
-- KEYS 1 stream · ARGV 1 group 2 owner 3.. id, count (at most 200 pairs: about 10 us of the server each)
-- Answers how many, if all are "ok"; else a word each: "ok", "gone", "trimmed" or "taken <owner> <count>".
-- Safe to repeat. One XCLAIM for all; a trimmed entry leaves the pending list with it (6.2 keeps it and says "ok").
local stream, group, owner = KEYS[1], ARGV[1], ARGV[2]

local words, claim, place = {}, {'XCLAIM', stream, group, owner, 0}, {}
for i = 3, #ARGV, 2 do
  local id, count, word = ARGV[i], tonumber(ARGV[i + 1]), 'ok'
  local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
  if not row then
    word = 'gone'
  elseif row[2] ~= owner or row[4] ~= count then
    word = 'taken ' .. row[2] .. ' ' .. string.format('%.0f', row[4])
  else
    claim[#claim + 1] = id
    place[id] = #words + 1
  end
  words[#words + 1] = word
end

local renewed = 0
if #claim > 5 then
  claim[#claim + 1] = 'JUSTID'
  for _, id in ipairs(redis.call(unpack(claim))) do
    place[id] = nil
    renewed = renewed + 1
  end
  for _, at in pairs(place) do words[at] = 'trimmed' end
end
if renewed == #words then return renewed end
return words
