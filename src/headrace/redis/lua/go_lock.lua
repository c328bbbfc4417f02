-- go_lock: takes or extends a lock of redis-stream-client-go that is in another slot than its entry, unless it is
--   somebody else's. Only after go_hold has said "ok" about the entry.
-- KEYS 1 lock · ARGV 1 value of the lock 2 how long it lives, ms
-- Answers "ok" or "locked <value>".
-- Safe to repeat. One SET, so there is no half-way.
local lock, value, lock_ms = KEYS[1], ARGV[1], ARGV[2]

local holder = redis.call('GET', lock)
if holder and holder ~= value then return 'locked ' .. holder end
redis.call('SET', lock, value, 'PX', lock_ms)
return 'ok'
