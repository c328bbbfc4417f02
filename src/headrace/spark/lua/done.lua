-- done: closes a batch whose blobs were all published and keeps its receipt.
-- KEYS 1 decision · ARGV 1 batch 2 receipt 3 seconds until the decision expires, 0: never
-- Answers "done", "before" (somebody else closed it) or "lost" (the decision is not there any more).
-- Safe to repeat: the second time it is "before".
local decision, batch, receipt, expire_s = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]

local known = redis.call('HMGET', decision, 'done', 'open')
local done, open = tonumber(known[1] or nil), tonumber(known[2] or nil)
if done and batch <= done then return 'before' end
if open ~= batch then return 'lost' end
redis.call('HSET', decision, 'done', string.format('%.0f', batch), 'receipt', receipt)
redis.call('HDEL', decision, 'open', 'manifest')
if expire_s ~= '0' then redis.call('EXPIRE', decision, expire_s) end
return 'done'
