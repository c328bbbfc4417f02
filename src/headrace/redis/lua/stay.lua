-- stay: says that an owner is still there, only if its entry still has the token of this process.
-- KEYS 1 stream 2 owners hash · ARGV 1 group 2 owner 3 token of this process
-- Answers {1 mine | 0 another process has the name | -1 no entry: join again, longest lease of the live owners, server ms}.
-- Safe to repeat. One field of the hash is written, so there is no half-way. The entry is described in join.lua.
local stream, owners, group, owner, token = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local ENTRY = '^{"seen_ms":(%d+),"lease_ms":(%d+),"token":"(%w*)"'

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local entry = redis.call('HGET', owners, owner)
local state, longest = -1, 0
if entry then
  local _, lease_ms, its_token = string.match(entry, ENTRY)
  state = its_token == token and 1 or 0
  if state == 1 then
    longest = tonumber(lease_ms)
    redis.call('XACK', stream, group, '0-0') -- changes nothing; under maxmemory it lets HSET through
    redis.call('HSET', owners, owner, (string.gsub(entry, '%d+', string.format('%.0f', now_ms), 1)))
  end
end

for _, other in ipairs(redis.call('HVALS', owners)) do
  local seen, lease_ms = string.match(other, ENTRY)
  if seen and now_ms - tonumber(seen) < 3 * tonumber(lease_ms) then longest = math.max(longest, tonumber(lease_ms)) end
end
return {state, longest, now_ms}
