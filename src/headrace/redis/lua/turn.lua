-- turn: reserves the next due delivery that must run alone, for one worker that is about to empty its hands for it.
-- KEYS 1 due set · ARGV 1 ms how long the others leave it to that worker
-- Answers 1 (yours: take it with `due`, alone) or 0 (none is due, or all are reserved).
-- Not repeatable: a second call reserves another. A turn nobody uses ends by itself; the delivery waits on meanwhile.
local ALONE, TURN = 1e15, 2e15 -- scores: see due.lua

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
for _, offset in ipairs({TURN, ALONE}) do
  local lowest, highest = string.format('%.0f', offset), string.format('%.0f', offset + now_ms)
  local ripe = redis.call('ZRANGEBYSCORE', KEYS[1], lowest, highest, 'LIMIT', 0, 1)
  if ripe[1] then
    redis.call('ZREM', KEYS[1], ripe[1]) -- allowed under maxmemory, and lets ZADD through
    redis.call('ZADD', KEYS[1], string.format('%.0f', TURN + now_ms + tonumber(ARGV[1])), ripe[1])
    return 1
  end
end
return 0
