-- leave: a delivery stays pending, out of its owner's hands, and its lock is left to run out as the wait before the
--   next attempt; only if (owner, count) still holds. Whoever finds it unlocked then requeues it (requeue.lua).
-- KEYS 1 stream 2 lock · ARGV 1 group 2 owner 3 id 4 count 5 who holds it meanwhile: "~retry", or "~release" if the
--   attempt does not count 6 wait, ms
-- Answers "ok", "gone", "trimmed" or "taken <owner> <count>".
-- Safe to repeat: the second time it is "ok" again. Half-way it is left with the lock it had.
local stream, lock, group, owner, id = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local count, meanwhile, wait_ms = tonumber(ARGV[4]), ARGV[5], ARGV[6]

local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not row then return 'gone' end
if row[2] == meanwhile and row[4] == count then return 'ok' end
if row[2] ~= owner or row[4] ~= count then
  return 'taken ' .. row[2] .. ' ' .. string.format('%.0f', row[4])
end

-- XCLAIM is allowed under maxmemory, and as the first write it lets SET through
if not redis.call('XCLAIM', stream, group, meanwhile, 0, id, 'JUSTID')[1] then
  redis.call('XACK', stream, group, id) -- 6.2 keeps it in the pending list
  redis.call('DEL', lock)
  return 'trimmed'
end
if tonumber(wait_ms) > 0 then
  redis.call('SET', lock, meanwhile, 'PX', wait_ms)
else
  redis.call('DEL', lock)
end
return 'ok'
