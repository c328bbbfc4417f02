-- stay: says that an owner is still there, only if its entry still has the token of this process.
-- KEYS 1 stream 2 owners hash · ARGV 1 group 2 owner 3 token of this process
-- Answers {1 mine | 0 another process has the name | -1 no entry: join again, longest lease of the live owners,
--   server ms}.
-- Safe to repeat. One HSET, so there is no half-way. The hash is described in join.lua.
local stream, owners, group, owner, token = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]

local LONGEST_MS = 86400000 -- see join.lua

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local entry = redis.call('HGET', owners, owner)
local _, lease_ms, its_token = string.match(entry or '', '^{"seen_ms":(%d+),"lease_ms":(%d+),"token":"(%w*)"')
local mine = its_token == token

local leases, longest_ms = {}, 0
if mine then
  leases[1] = lease_ms .. ' ' .. string.format('%.0f', now_ms) .. ';'
  longest_ms = tonumber(lease_ms)
end
for lease, when in string.gmatch(redis.call('HGET', owners, '') or '', '(%d+) (%d+);') do
  local its_ms, ago_ms = tonumber(lease), math.abs(now_ms - tonumber(when))
  if not (mine and lease == lease_ms) and its_ms <= LONGEST_MS and ago_ms < 3 * its_ms then
    leases[#leases + 1] = lease .. ' ' .. when .. ';'
    longest_ms = math.max(longest_ms, its_ms)
  end
end

if mine then
  redis.call('XACK', stream, group, '0-0') -- changes nothing; under maxmemory it lets HSET through
  local fresh = string.gsub(entry, '%d+', string.format('%.0f', now_ms), 1)
  redis.call('HSET', owners, owner, fresh, '', table.concat(leases))
end
return {mine and 1 or entry and 0 or -1, longest_ms, now_ms}
