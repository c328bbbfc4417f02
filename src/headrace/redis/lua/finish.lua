-- finish: the data slot's half of ending an assignment: marked done, then the data stream deleted if wanted.
-- KEYS 1 data stream 2 ownership hash · ARGV 1 owner 2 epoch 3 assignment id 4 mirror group 5 "del" or "keep"
--   6 seconds to remember
-- Answers "ok" or "taken <owner> <epoch>".
-- Safe to repeat: the second time it is "ok". The announcement is ended afterwards (finished.lua): a crash between
--   leaves it pending, and the next owner's take answers "done" and ends it.
local data, own, owner, epoch, id = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]

local now = redis.call('HMGET', own, 'owner', 'epoch', 'done')
if now[3] == id and now[2] == epoch then return 'ok' end
if now[1] ~= owner or now[2] ~= epoch then return 'taken ' .. (now[1] or '') .. ' ' .. (now[2] or '0') end
redis.call('XACK', data, ARGV[4], '0-0') -- changes nothing; under maxmemory it lets the rest through
-- What a user may not have the right to comes first: refused there, nothing is marked as done.
if ARGV[5] == 'del' then redis.call('DEL', data) end
redis.call('EXPIRE', own, ARGV[6])
redis.call('HSET', own, 'done', id, 'owner', '', 'tries', 0)
if ARGV[5] == 'del' then
  redis.call('HSET', own, 'pos', '0-0', 'read', 0)
  redis.call('HDEL', own, 'gone')
end
return 'ok'
