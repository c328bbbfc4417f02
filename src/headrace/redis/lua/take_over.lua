-- take_over: new messages, and before them those that were idle for a lease, whoever held them (XREADGROUP CLAIM, Redis
--   8.4 and later). CLAIM in a plain read would do, but one that lies in the socket of a server that stands still robs
--   every live owner when that wakes: it looks at idle clocks before the renewals that lie there with it.
-- KEYS 1 stream · ARGV 1 group 2 owner 3 lease ms 4 count 5 server ms after which to do nothing, 0 never
-- Answers {"ok" | "late", {{id, fields, idle ms, count before}, ..}, server ms}.
-- Not repeatable: ask `mine` after a lost answer.
local stream, group, owner, lease_ms, count = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local deadline_ms = tonumber(ARGV[5])
if deadline_ms > 0 and now_ms > deadline_ms then return {'late', {}, now_ms} end

local reply = redis.call('XREADGROUP', 'GROUP', group, owner, 'COUNT', count, 'CLAIM', lease_ms, 'STREAMS', stream, '>')
local entries = reply and reply[1][2] or {}
for _, entry in ipairs(entries) do
  -- a count in full: it has 63 bits (XNACK FATAL sets them all), Lua's numbers 53
  if entry[4] >= 2 ^ 53 then entry[4] = '9223372036854775807' end
end
return {'ok', entries, now_ms}
