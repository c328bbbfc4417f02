-- rescue: takes over deliveries that were idle for a lease, whoever held them. The count rises by one.
-- KEYS 1 stream · ARGV 1 group 2 owner 3 lease ms 4 cursor, "-" first 5 count 6 server ms after
--   which to do nothing, 0 never
-- Answers {next cursor or "-" | "late", {{id, fields, attempt, idle ms, former owner}, ..}, {trimmed ids}, server ms}.
-- Not repeatable: ask `mine` after a lost answer. XAUTOCLAIM would do, but tells no count, half of the fence.
local stream, group, owner, lease_ms, count = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[5])

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local deadline_ms = tonumber(ARGV[6])
-- queued behind a pause of the server: the renewals queued with it must go first
if deadline_ms > 0 and now_ms > deadline_ms then return {'late', {}, {}, now_ms} end

local rows = redis.call('XPENDING', stream, group, 'IDLE', lease_ms, ARGV[4], '+', count)
if #rows == 0 then return {'-', {}, {}, now_ms} end

-- Min idle 0, because the age was checked above: a missing answer then means one thing only, the body is gone.
local claim, fields = {'XCLAIM', stream, group, owner, 0}, {}
for _, row in ipairs(rows) do claim[#claim + 1] = row[1] end
for _, entry in ipairs(redis.call(unpack(claim))) do
  if entry then fields[entry[1]] = entry[2] end
end

-- a count in full: it has 63 bits (XNACK FATAL sets them all), Lua's numbers 53
local function digits(count)
  return count < 2 ^ 63 and string.format('%.0f', count) or '9223372036854775807'
end

local rescued, trimmed = {}, {}
for _, row in ipairs(rows) do
  local id = row[1]
  if fields[id] then
    rescued[#rescued + 1] = {id, fields[id], digits(row[4] + 1), row[3], row[2]}
  else
    redis.call('XACK', stream, group, id) -- 6.2 keeps it in the pending list
    trimmed[#trimmed + 1] = id
  end
end
return {#rows == count and '(' .. rows[#rows][1] or '-', rescued, trimmed, now_ms}
