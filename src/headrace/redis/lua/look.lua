-- look: says when the next waiting delivery is due. Reads only; what `due` would give is decided there.
-- KEYS 1 due set
-- Answers {ms to the next, the same for those that must run alone}: 0 due now, -1 none.
-- Safe to repeat.
local due_set = KEYS[1]
local ALONE, TURN = 1e15, 2e15 -- scores: see due.lua

local first = redis.call('ZRANGE', due_set, 0, 0, 'WITHSCORES')
if not first[2] then return {-1, -1} end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local next_ms, alone_ms = -1, -1
if tonumber(first[2]) < ALONE then next_ms = math.max(0, tonumber(first[2]) - now_ms) end
if tonumber(redis.call('ZRANGE', due_set, -1, -1, 'WITHSCORES')[2]) < ALONE then return {next_ms, -1} end

for _, offset in ipairs({ALONE, TURN}) do
  local lowest, highest = string.format('%.0f', offset), string.format('(%.0f', offset + ALONE)
  local ripe = redis.call('ZRANGEBYSCORE', due_set, lowest, highest, 'WITHSCORES', 'LIMIT', 0, 1)
  if ripe[2] then
    local in_ms = math.max(0, tonumber(ripe[2]) - offset - now_ms)
    if alone_ms < 0 or in_ms < alone_ms then alone_ms = in_ms end
  end
end
return {next_ms, alone_ms}
