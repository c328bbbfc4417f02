-- finished: the announcement's half of ending an assignment: acked, deleted, its name free again.
-- KEYS 1 announcement stream 2 names hash · ARGV 1 group 2 owner 3 id 4 count 5 name
-- Answers "ok", "gone" or "taken <owner> <count>".
-- Safe to repeat: the second time it is "gone". Only after finish answered "ok", or take "done" or "newer". The name is
--   forgotten only if it still stands for this id.
local stream, names, group, owner, id, count = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not row then return 'gone' end
if row[2] ~= owner or row[4] ~= count then
  return 'taken ' .. row[2] .. ' ' .. string.format('%.0f', row[4])
end
if redis.call('HGET', names, ARGV[5]) == id then redis.call('HDEL', names, ARGV[5]) end
redis.call('XACK', stream, group, id)
redis.call('XDEL', stream, id)
return 'ok'
