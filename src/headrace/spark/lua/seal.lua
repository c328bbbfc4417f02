-- seal: looks whether a list is whole and its target can take rows, before anybody decides to publish it.
-- KEYS 1 list 2 target stream · ARGV 1 blobs that must be there 2 seconds until it expires, 0: never
-- Answers "ok", "short <length>" or "type <what the target's key holds>".
-- Safe to repeat. Changes nothing but the list's expiry.
local list, target, blobs, expire_s = KEYS[1], KEYS[2], tonumber(ARGV[1]), ARGV[2]

local length = redis.call('LLEN', list)
if length ~= blobs then return 'short ' .. length end
local kind = redis.call('TYPE', target).ok
if kind ~= 'stream' and kind ~= 'none' then return 'type ' .. kind end
if expire_s == '0' then
  redis.call('PERSIST', list)
else
  redis.call('EXPIRE', list, expire_s)
end
return 'ok'
