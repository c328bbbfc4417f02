-- remove_owner: forgets an owner, only if it holds nothing and was not heard of for a given time.
-- KEYS 1 stream 2 owners hash · ARGV 1 group 2 owner 3 min idle ms
-- Answers "removed", "gone" (unknown), "fresh <idle ms>" or "pending <how many>".
-- Safe to repeat: the second time it is "gone". DELCONSUMER drops what is pending: hence the check in the same script.
local stream, owners, group, owner, min_idle_ms = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
local ENTRY = '^{"seen_ms":(%d+),"lease_ms":(%d+)' -- see join.lua

local idle_ms
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local about = {}
  for i = 1, #info, 2 do about[info[i]] = info[i + 1] end
  if about.name == owner then
    if about.pending > 0 then return 'pending ' .. string.format('%.0f', about.pending) end
    idle_ms = about.idle
  end
end

local entry = redis.call('HGET', owners, owner)
local seen = entry and string.match(entry, ENTRY)
if seen then
  local time = redis.call('TIME')
  local unseen_ms = time[1] * 1000 + math.floor(time[2] / 1000) - tonumber(seen)
  idle_ms = math.min(idle_ms or unseen_ms, unseen_ms)
end
if not idle_ms and not entry then return 'gone' end
if idle_ms and idle_ms < min_idle_ms then return 'fresh ' .. string.format('%.0f', idle_ms) end

redis.call('HDEL', owners, owner, '') -- first: under maxmemory it lets XGROUP through, which 6.2 would refuse
redis.call('XGROUP', 'DELCONSUMER', stream, group, owner)

-- its lease may have been the longest: note again those of the owners that are left
local last_seen, leases = {}, {}
for _, left in ipairs(redis.call('HVALS', owners)) do
  local when, lease = string.match(left, ENTRY)
  if when and (not last_seen[lease] or tonumber(last_seen[lease]) < tonumber(when)) then last_seen[lease] = when end
end
for lease, when in pairs(last_seen) do leases[#leases + 1] = lease .. ' ' .. when .. ';' end
if #leases > 0 then redis.call('HSET', owners, '', table.concat(leases)) end
return 'removed'
