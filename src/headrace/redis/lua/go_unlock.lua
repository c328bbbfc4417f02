-- go_unlock: removes a lock of redis-stream-client-go that is in another slot than its entry, only if it is mine.
-- KEYS 1 lock · ARGV 1 value of the lock
-- Answers 1 or 0: how many were removed.
-- Safe to repeat: the second time it is 0. Only after the entry is acked: an unlocked pending entry is an orphan.
local lock, value = KEYS[1], ARGV[1]

if redis.call('GET', lock) ~= value then return 0 end
return redis.call('DEL', lock)
