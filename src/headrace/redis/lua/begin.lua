-- begin: notes that a handler is given a message, only under the current owner and epoch.
-- KEYS 1 data stream 2 ownership hash · ARGV 1 owner 2 epoch 3 mirror group
-- Answers {"ok", tries} or {"taken", owner, epoch}.
-- Not repeatable: each counts one try. An ack that moves the position sets them to 0, so tries are handler starts that
--   led nowhere, also when they killed their process.
local data, own, owner, epoch = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local now = redis.call('HMGET', own, 'owner', 'epoch')
if now[1] ~= owner or now[2] ~= epoch then return {'taken', now[1] or '', now[2] or ''} end
redis.call('XACK', data, ARGV[3], '0-0') -- changes nothing; under maxmemory it lets the rest through
return {'ok', redis.call('HINCRBY', own, 'tries', 1)}
