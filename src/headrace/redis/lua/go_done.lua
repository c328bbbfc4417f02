-- go_done: finishes an entry of redis-stream-client-go's load balancer stream: acked, deleted, unlocked, in this order
--   and in one step; only if it is pending for this consumer and nobody else's lock is on it.
-- KEYS 1 load balancer stream 2 lock · ARGV 1 group 2 consumer 3 value of the lock 4 id
-- Answers "ok", "gone", "taken <consumer> <count>" or "locked <value>".
-- Safe to repeat: the second time it is "gone". Acked before it is unlocked: an unlocked pending entry is an orphan.
local stream, lock, group, consumer, value, id = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not row then return 'gone' end
if row[2] ~= consumer then return 'taken ' .. row[2] .. ' ' .. string.format('%.0f', row[4]) end
local holder = redis.call('GET', lock)
if holder and holder ~= value then return 'locked ' .. holder end
redis.call('XACK', stream, group, id)
redis.call('XDEL', stream, id)
redis.call('DEL', lock)
return 'ok'
