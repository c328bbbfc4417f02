-- levels: how much work a group has: not yet read, held, waiting, parked. Reads only.
-- KEYS 1 stream 2 due set · ARGV 1 group 2 waiting group
-- Answers {lag, 1 exact | 0 at least, pending, waiting with a due time, waiting until replayed,
--   longest idle ms among the 100 lowest pending ids}.
-- Safe to repeat. Where the server knows no lag (6.2, or after deletions) up to 1,000 entries are counted.
local stream, due_set, group, waiting_group = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local MOST = 1000

local rows = redis.call('XPENDING', stream, group, '-', '+', 100)
local oldest_ms = 0
for _, row in ipairs(rows) do oldest_ms = math.max(oldest_ms, row[3]) end

local about, all_waiting = {}, 0
for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local one = {}
  for i = 1, #info, 2 do one[info[i]] = info[i + 1] end
  if one.name == group then about = one end
  if one.name == waiting_group then all_waiting = one.pending end
end

local lag, exact = about.lag, 1
if not lag then
  local last = about['last-delivered-id']
  lag = #redis.call('XRANGE', stream, last == '0-0' and '-' or '(' .. last, '+', 'COUNT', MOST)
  if lag == MOST then
    exact = 0
    if last == '0-0' then lag, exact = redis.call('XLEN', stream), 1 end
  end
end
local waiting = redis.call('ZCARD', due_set)
return {lag, exact, about.pending, waiting, math.max(0, all_waiting - waiting), oldest_ms}
