-- go_hold: takes or extends the lock of an entry of redis-stream-client-go's load balancer stream, only if the entry is
--   pending for this consumer and nobody else's lock is on it. Resets its idle clock too.
-- KEYS 1 load balancer stream 2 lock · ARGV 1 group 2 consumer 3 value of the lock 4 how long it lives, ms 5 id
-- Answers "ok", "gone" (finished or requeued), "taken <consumer> <count>" or "locked <value>".
-- Safe to repeat. The idle clock first: half-way the entry is fresh to everybody who scans.
local stream, lock, group, consumer = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local value, lock_ms, id = ARGV[3], ARGV[4], ARGV[5]

local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not row then return 'gone' end
if row[2] ~= consumer then return 'taken ' .. row[2] .. ' ' .. string.format('%.0f', row[4]) end
local holder = redis.call('GET', lock)
if holder and holder ~= value then return 'locked ' .. holder end
redis.call('XCLAIM', stream, group, consumer, 0, id, 'JUSTID') -- allowed under maxmemory: lets SET through
redis.call('SET', lock, value, 'PX', lock_ms)
return 'ok'
