-- inherit: takes assignments of owners whose lease has ended. The count rises by one.
-- KEYS 1 announcement stream 2 beats set · ARGV 1 group 2 owner 3 how many 4 ms: an owner that never had a lease is
--   dead when idle for so long 5 server ms after which to do nothing, 0 never 6 "certain": only of owners whose lease
--   was ended by a word (end_lease), else ""
-- Answers {server ms, 1 late | 0, {{id, fields, count, former owner}, ..}, {trimmed ids}}.
-- Not repeatable: ask `mine` after a lost answer. Atomic: two heirs never get the same one. Owners gone for an hour
--   with nothing left are forgotten on the way.
local stream, beats, group, owner, wanted = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
local FORGET_MS, FORGOTTEN_AT_ONCE = 3600000, 5
local LEAVING = 1e15 -- more in the score of an owner that leaves (beat.lua)

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local deadline_ms, certain = tonumber(ARGV[5]), ARGV[6] == 'certain'
-- queued behind a pause of the server: the beats queued with it must go first
if deadline_ms > 0 and now_ms > deadline_ms then return {now_ms, 1, {}, {}} end

-- a count in full: it has 63 bits (XNACK FATAL sets them all), Lua's numbers 53
local function digits(count)
  return count < 2 ^ 63 and string.format('%.0f', count) or '9223372036854775807'
end

local taken, trimmed = {}, {}
local function take_from(former, idle_ms)
  local rows = redis.call('XPENDING', stream, group, 'IDLE', idle_ms, '-', '+', wanted - #taken, former)
  for _, row in ipairs(rows) do
    local entry = redis.call('XCLAIM', stream, group, owner, 0, row[1])[1]
    if entry then
      taken[#taken + 1] = {row[1], entry[2], digits(row[4] + 1), former}
    else
      redis.call('XACK', stream, group, row[1]) -- 6.2 keeps it in the pending list
      trimmed[#trimmed + 1] = row[1]
    end
  end
end

for _, consumer in ipairs(redis.call('XPENDING', stream, group)[4] or {}) do
  if #taken >= wanted then break end
  local former = consumer[1]
  local ends_ms = former ~= owner and redis.call('ZSCORE', beats, former)
  if former ~= owner and not ends_ms then
    if not certain then take_from(former, ARGV[4]) end
  elseif ends_ms and tonumber(ends_ms) % LEAVING < (certain and 1 or now_ms) then
    take_from(former, 0)
    -- no more than a dead owner, to be forgotten like any other
    redis.call('ZADD', beats, string.format('%.0f', tonumber(ends_ms) % LEAVING), former)
  end
end

local function forget(from, until_ms)
  local before = '(' .. string.format('%.0f', until_ms)
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', beats, from, before, 'LIMIT', 0, FORGOTTEN_AT_ONCE)) do
    if #redis.call('XPENDING', stream, group, '-', '+', 1, gone) == 0 then
      redis.call('XGROUP', 'DELCONSUMER', stream, group, gone) -- with nothing pending it loses nothing
      redis.call('ZREM', beats, gone)
    end
  end
end
forget('-inf', now_ms - FORGET_MS)
forget(LEAVING, LEAVING + now_ms - FORGET_MS) -- killed while they left
return {now_ms, 0, taken, trimmed}
