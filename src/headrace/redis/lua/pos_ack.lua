-- pos_ack: acknowledges an owned stream up to an id, only under the current owner and epoch.
-- KEYS 1 data stream 2 ownership hash · ARGV 1 owner 2 epoch 3 id 4 messages since the last ack 5 mirror group
--   6 tries from here on: 0, or 1 if a handler gets the next message as soon as this is answered
-- Answers "ok", "old" (acknowledged before) or "taken <owner> <epoch>".
-- Safe to repeat: the second time it is "old". The position never goes back; the mirror group follows it, so that lag
--   shows in XINFO GROUPS and no retention cuts unread messages.
local data, own, owner, epoch, id, mirror = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[5]

local now = redis.call('HMGET', own, 'owner', 'epoch', 'pos', 'gone')
if now[1] ~= owner or now[2] ~= epoch then return 'taken ' .. (now[1] or '') .. ' ' .. (now[2] or '0') end
-- ids are decimal strings of up to 20 digits, which Lua's numbers cannot hold
local function below(a, b) return #a < #b or (#a == #b and a < b) end
local ms, seq = string.match(id, '(%d+)-(%d+)')
local at_ms, at_seq = string.match(now[3], '(%d+)-(%d+)')
if not (below(at_ms, ms) or (at_ms == ms and below(at_seq, seq))) then return 'old' end

redis.call('XACK', data, mirror, '0-0') -- changes nothing; under maxmemory it lets the rest through
redis.call('HSET', own, 'pos', id, 'tries', ARGV[6])
local read = redis.call('HINCRBY', own, 'read', ARGV[4])
local number = string.format('%.0f', math.max(0, read + tonumber(now[4] or 0))) -- among all that were ever added
-- pcall: 6.2 cannot be told how many were read, and somebody may have deleted the mirror: then only the view of others
-- is lost
if redis.pcall('XGROUP', 'SETID', data, mirror, id, 'ENTRIESREAD', number).err then
  redis.pcall('XGROUP', 'SETID', data, mirror, id)
end
return 'ok'
