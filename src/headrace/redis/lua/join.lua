-- join: enters an owner into the group's owners, unless its name is fixed and another live process has it.
-- KEYS 1 stream 2 owners hash · ARGV 1 group 2 owner 3 token of this process 4 lease ms 5 "fixed" or "" 6 info: JSON object
-- Answers {"ok" | "taken", the entry that was there or "", longest lease of the live owners, server ms}.
-- Safe to repeat with the same token. One field of the hash is written, so there is no half-way.
--
-- An entry is JSON, written here and in stay.lua only and always in this order, so that patterns can read it:
--   {"seen_ms":<server ms>,"lease_ms":<ms>,"token":"<letters and digits>",<the info's own members>}
local stream, owners, group, owner = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local token, lease_ms, fixed, info = ARGV[3], tonumber(ARGV[4]), ARGV[5] == 'fixed', ARGV[6]
local ENTRY = '^{"seen_ms":(%d+),"lease_ms":(%d+),"token":"(%w*)"'

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local before = redis.call('HGET', owners, owner) or ''
local seen, its_lease, its_token = string.match(before, ENTRY)
local word = 'ok'
if fixed and seen and its_token ~= token and now_ms - tonumber(seen) < math.max(tonumber(its_lease), lease_ms) then
  word = 'taken'
else
  -- An XACK of no entry changes nothing and is allowed under maxmemory: it lets HSET through, because a full
  -- server is emptied by workers that can start.
  redis.call('XACK', stream, group, '0-0')
  local head = string.format('{"seen_ms":%.0f,"lease_ms":%.0f,"token":"%s"', now_ms, lease_ms, token)
  local rest = string.match(info, '^{(.*)}$')
  redis.call('HSET', owners, owner, head .. (rest == '' and '' or ',') .. rest .. '}')
end

local longest = lease_ms
for _, entry in ipairs(redis.call('HVALS', owners)) do
  local entry_seen, entry_lease = string.match(entry, ENTRY)
  if entry_seen and now_ms - tonumber(entry_seen) < 3 * tonumber(entry_lease) then
    longest = math.max(longest, tonumber(entry_lease))
  end
end
return {word, before, longest, now_ms}
