-- give_up: gives an owned stream up before its announcement is handed on, only under the current owner and epoch.
-- KEYS 1 data stream 2 ownership hash · ARGV 1 owner 2 epoch 3 mirror group 4 what to add to the tries: -1, 0, 1
-- Answers {"ok", tries} or {"taken", owner, epoch}.
-- Safe to repeat: nobody owns it then, and it answers the tries again. If the announcement is not handed on afterwards
--   (a crash), it is inherited like any other when the owner's lease ends.
local data, own, owner, epoch = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local now = redis.call('HMGET', own, 'owner', 'epoch', 'tries')
if now[2] ~= epoch or (now[1] ~= owner and now[1] ~= '') then return {'taken', now[1] or '', now[2] or ''} end
local tries = tonumber(now[3] or 0)
if now[1] == '' then return {'ok', tries} end
tries = math.max(0, tries + tonumber(ARGV[4]))
redis.call('XACK', data, ARGV[3], '0-0') -- changes nothing; under maxmemory it lets the rest through
redis.call('HSET', own, 'owner', '', 'tries', tries)
return {'ok', tries}
