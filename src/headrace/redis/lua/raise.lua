-- raise: lifts the count of an assignment above one seen in the data slot, only if (owner, count) still holds.
-- KEYS 1 announcement stream · ARGV 1 group 2 owner 3 id 4 count 5 new count
-- Answers "ok", "gone" or "taken <owner> <count>".
-- Safe to repeat: the second time it is "taken" by the caller with the new count. Needed when counts went back: a
--   failover lost a claim, the group was made again, a dead letter was replayed. Only the holder may do it, so it ends.
local stream, group, owner, id, count = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not row then return 'gone' end
if row[2] ~= owner or row[4] ~= count then
  return 'taken ' .. row[2] .. ' ' .. string.format('%.0f', row[4])
end
redis.call('XCLAIM', stream, group, owner, 0, id, 'RETRYCOUNT', ARGV[5], 'JUSTID')
return 'ok'
