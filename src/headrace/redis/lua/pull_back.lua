-- pull_back: sets a group back that is ahead of its stream: what is added below it would never be handed out (ADR 14).
-- KEYS 1 stream 2 looked · ARGV 1 group 2 "1" to look although nothing seems to have happened, else "0"
-- Answers {"even"}, {"pulled", where it was, where it is now}, {"refused", was, would be} without the right to do it,
--   or {"ahead", was, end of the stream}: never seen otherwise, so it may be meant (start=), and is left alone.
-- Safe to repeat: the second time it is "even". SETID comes before the note; without the note it is "even" as well.
local stream, looked, group, thorough = KEYS[1], KEYS[2], ARGV[1], ARGV[2] == '1'
local STEP_MS = 10000 -- a clock that was set back was so no longer ago than this: somebody looks every second

local function is_lower(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then a_seq, b_seq = a_ms, b_ms end
  return #a_seq < #b_seq or (#a_seq == #b_seq and a_seq < b_seq)
end
local function digits(number) return string.format('%.0f', number) end

redis.call('XPENDING', stream, group) -- an error without the group
local at
for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local about = {}
  for i = 1, #info, 2 do about[info[i]] = info[i + 1] end
  if about.name == group then at = about['last-delivered-id'] end
end
local note = redis.call('GET', looked) or ''
local even_ms, state = string.match(note, '^(%d+) (%d+%-%d+ %d+)$')
-- XINFO STREAM brings two whole messages along: not where nobody added or read anything since the last look
if not thorough and state == at .. ' ' .. digits(redis.call('XLEN', stream)) then return {'even'} end

local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local about, last = redis.call('XINFO', 'STREAM', stream), nil
for i = 1, #about, 2 do
  if about[i] == 'last-generated-id' then last = about[i + 1] end
end
local function noted(id)
  redis.call('XACK', stream, group, '0-0') -- changes nothing; under maxmemory it lets SET through
  redis.call('SET', looked, digits(now_ms) .. ' ' .. id .. ' ' .. digits(redis.call('XLEN', stream)))
end
if not is_lower(last, at) then
  noted(at)
  return {'even'}
end
if not even_ms or #even_ms > 15 then return {'ahead', at, last} end

-- Since the clock showed even_ms the stream was set back, to the id of a message or above all of them. What came after
-- has a higher id than what was there before, and its time is the clock's, or, where that was behind, the time of the
-- last id. So nothing new is below the moment of the last look; and old messages that are not, are few.
local since_ms, target = tonumber(even_ms), last
if now_ms < since_ms then since_ms = math.max(1, now_ms - STEP_MS) end
if not is_lower(last, digits(since_ms) .. '-0') then target = digits(since_ms - 1) .. '-18446744073709551615' end
redis.call('XACK', stream, group, '0-0') -- changes nothing; under maxmemory it lets XGROUP through
if redis.pcall('XGROUP', 'SETID', stream, group, target).err then return {'refused', at, target} end
noted(target)
return {'pulled', at, target}
