-- begin: notes that a handler is given a message, only under the current owner and epoch.
-- KEYS 1 data stream 2 ownership hash · ARGV 1 owner 2 epoch 3 mirror group 4 tries there are with this one
-- Answers {"ok", tries} or {"taken", owner, epoch}.
-- Safe to repeat: nobody else counts in this epoch. An ack that moves the position sets them to 0, so tries are handler
--   starts that led nowhere, also when they killed their process.
local data, own, owner, epoch = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local now = redis.call('HMGET', own, 'owner', 'epoch', 'tries')
if now[1] ~= owner or now[2] ~= epoch then return {'taken', now[1] or '', now[2] or ''} end
redis.call('XACK', data, ARGV[3], '0-0') -- changes nothing; under maxmemory it lets the rest through
local tries = math.max(tonumber(now[3] or 0), tonumber(ARGV[4]))
redis.call('HSET', own, 'tries', tries)
return {'ok', tries}
