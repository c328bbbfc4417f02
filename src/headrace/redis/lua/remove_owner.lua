-- remove_owner: forgets an owner, only if it holds nothing and was not heard of for a given time.
-- KEYS 1 stream 2 owners hash · ARGV 1 group 2 owner 3 min idle ms
-- Answers "removed", "gone" (unknown), "fresh <idle ms>" or "pending <how many>".
-- Safe to repeat: the second time it is "gone". DELCONSUMER drops what is pending: hence the check in the same script.
local stream, owners, group, owner, min_idle_ms = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])

local held = redis.call('XPENDING', stream, group, '-', '+', 1, owner)
local idle_ms
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local about = {}
  for i = 1, #info, 2 do about[info[i]] = info[i + 1] end
  if about.name == owner then
    if #held > 0 or about.pending > 0 then return 'pending ' .. string.format('%.0f', about.pending) end
    idle_ms = about.idle
  end
end

local entry = redis.call('HGET', owners, owner)
local seen_ms = entry and tonumber(string.match(entry, '^{"seen_ms":(%d+)'))
if seen_ms then
  local time = redis.call('TIME')
  local unseen_ms = time[1] * 1000 + math.floor(time[2] / 1000) - seen_ms
  idle_ms = math.min(idle_ms or unseen_ms, unseen_ms)
end
if not idle_ms and not entry then return 'gone' end
if idle_ms and idle_ms < min_idle_ms then return 'fresh ' .. string.format('%.0f', idle_ms) end

redis.call('XGROUP', 'DELCONSUMER', stream, group, owner)
redis.call('HDEL', owners, owner)
return 'removed'
