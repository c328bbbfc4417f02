-- due: gives the caller the waiting deliveries whose time has come, with the attempt that starts now.
-- KEYS 1 stream 2 due set · ARGV 1 group 2 waiting group 3 owner 4 limit 5 "alone": those that must run alone, else ""
--   6 ms: a turn that ends within that time counts as over (the caller's own, see turn.lua)
-- Answers {{{id, fields, attempt, ms past due, mark}, ..}, {trimmed ids}, ms to the next one that is not alone or -1,
--   how many ids of the due set waited nowhere any more, 1 if the waiting group had vanished}.
-- Not repeatable: ask `mine` after a lost answer. One winner: the id must still be in the waiting group's pending
--   list. It is claimed before it leaves that list, so it is in one of the two at any time.
local stream, due_set, group, waiting_group, owner = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local limit, alone, early_ms = tonumber(ARGV[4]), ARGV[5] == 'alone', tonumber(ARGV[6])
-- The due set's score is due ms; 10^15 more: must run alone; 2 x 10^15 more: reserved, until the end of a turn.
local ALONE, TURN = 1e15, 2e15
local NO_ID = 'Invalid stream ID' -- as servers say it

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local function ripe(offset, until_ms, most)
  -- a score below zero is none of ours: due at once, or it would stay in front for ever
  local lowest = offset == 0 and '-inf' or string.format('%.0f', offset)
  local highest = string.format('%.0f', offset + until_ms)
  return redis.call('ZRANGEBYSCORE', due_set, lowest, highest, 'WITHSCORES', 'LIMIT', 0, most)
end

-- a count in full: it has 63 bits (XNACK FATAL sets them all), Lua's numbers 53
local function digits(count)
  return count < 2 ^ 63 and string.format('%.0f', count) or '9223372036854775807'
end

local ids = {}
if limit > 0 and not alone then
  ids = ripe(0, now_ms, limit)
elseif limit > 0 then
  ids = ripe(TURN, now_ms + early_ms, limit)
  if #ids == 0 then ids = ripe(ALONE, now_ms, limit) end
end

local taken, trimmed, left, dropped, vanished = {}, {}, {}, 0, 0
for i = 1, #ids, 2 do
  local id, score = ids[i], tonumber(ids[i + 1])
  local late_ms = score > 0 and math.max(0, now_ms - score % ALONE) or 0
  local held = string.match(id, '^%d+%-%d+$') and redis.pcall('XPENDING', stream, group, id, id, 1) or {err = NO_ID}
  local waiting = held.err and held or redis.pcall('XPENDING', stream, waiting_group, id, id, 1)
  local vanishes = not held.err and waiting.err and string.find(waiting.err, 'NOGROUP', 1, true)
  if waiting.err and string.find(waiting.err, NO_ID, 1, true) then
    redis.call('ZREM', due_set, id) -- others may write here, too; with it, every later command would fail
    dropped = dropped + 1
  elseif waiting.err and not vanishes then
    return waiting
  else
    local attempt, mark
    if vanishes then
      -- The waiting group was destroyed and its counts with it. Handed out as new: once too often beats never.
      attempt, mark, vanished = 1, 'waiting', 1
    elseif waiting[1] then
      attempt, mark = waiting[1][4] + 1, waiting[1][2]
    end
    if held[1] then
      -- in the main list already (group set back, failover): whoever holds it there keeps it
    elseif attempt then
      local count = digits(attempt)
      local entry = redis.call('XCLAIM', stream, group, owner, 0, id, 'FORCE', 'RETRYCOUNT', count)[1]
      if entry then
        taken[#taken + 1] = {id, entry[2], count, late_ms, mark}
      else
        trimmed[#trimmed + 1] = id
      end
    else
      dropped = dropped + 1
    end
    left[#left + 1] = id
  end
end
if #left > 0 then
  redis.call('XACK', stream, waiting_group, unpack(left))
  redis.call('ZREM', due_set, unpack(left))
end
if vanished == 1 then
  redis.call('XGROUP', 'CREATE', stream, waiting_group, '18446744073709551615-18446744073709551615')
end

local first = redis.call('ZRANGE', due_set, 0, 0, 'WITHSCORES')
local next_ms = -1
if first[2] and tonumber(first[2]) < ALONE then next_ms = math.max(0, tonumber(first[2]) - now_ms) end
return {taken, trimmed, next_ms, dropped, vanished}
