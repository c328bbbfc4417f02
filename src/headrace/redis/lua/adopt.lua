-- adopt: hands back what a dead owner held. Started deliveries keep their count, the others give it back.
-- KEYS 1 stream 2 due set · ARGV 1 group 2 waiting group 3 dead owner 4 chunk 5 count at which the next attempt is the
--   last and must run alone, 0 never 6 prefix of the field that counts a copy's earlier attempts, "" none 7 how many
--   delays follow 8.. delay ms after crash 1, 2, .. (the last repeats), then the ids that were started
-- Answers {how many, how many of them keep their count, how many give it back, {trimmed ids}}. Repeat until it
--   answers fewer than the chunk.
-- Safe to repeat: what was handed back is not held any more. Filed in the waiting group before it leaves the main one.
local stream, due_set, group, waiting_group, owner = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local chunk, alone_at, prefix, delays = ARGV[4], tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local ALONE = 1e15 -- the due set's score is due ms; 10^15 more: must run alone (due.lua)

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.ceil(time[2] / 1000)
local started = {}
for i = 8 + delays, #ARGV do started[ARGV[i]] = true end

-- a count in full: it has 63 bits (XNACK FATAL sets them all), Lua's numbers 53
local function digits(count)
  return count < 2 ^ 63 and string.format('%.0f', count) or '9223372036854775807'
end

local function wait_there(id, mark, count)
  local claim = {'XCLAIM', stream, waiting_group, mark, 0, id, 'FORCE', 'RETRYCOUNT', count, 'JUSTID'}
  local reply = redis.pcall(unpack(claim))
  if reply.err then
    if string.find(reply.err, 'NOGROUP', 1, true) then
      redis.call('XGROUP', 'CREATE', stream, waiting_group, '18446744073709551615-18446744073709551615')
    end
    reply = redis.call(unpack(claim))
  end
  return reply[1]
end

-- Attempts under other ids, of a message that was requeued before (requeue.lua): the count knows nothing of them.
local function earlier(id)
  local entry = prefix ~= '' and redis.call('XRANGE', stream, id, id)[1]
  local fields = entry and entry[2] or {}
  for i = 1, #fields, 2 do
    local value = fields[i + 1]
    if fields[i] == prefix .. 'retry_count' and #value < 10 and string.match(value, '^%d+$') then
      return tonumber(value)
    end
  end
  return 0
end

local rows = redis.call('XPENDING', stream, group, '-', '+', chunk, owner)
local kept, given_back, trimmed = 0, 0, {}
for _, row in ipairs(rows) do
  local id, count, due_ms, mark = row[1], row[4], now_ms, 'waiting'
  local before = earlier(id)
  if started[id] then
    mark, kept = 'crashed', kept + 1
    due_ms = now_ms + tonumber(ARGV[7 + math.min(math.max(count + before, 1), delays)])
  else
    count, given_back = math.max(count - 1, 0), given_back + 1
  end
  -- Also for one that was not started: it may have been taken to run alone. Beyond that count it is only buried.
  if alone_at > 0 and count + before == alone_at then due_ms = due_ms + ALONE end
  if wait_there(id, mark, digits(count)) then
    redis.call('ZADD', due_set, string.format('%.0f', due_ms), id)
  else
    trimmed[#trimmed + 1] = id
  end
  redis.call('XACK', stream, group, id)
end
return {#rows, kept, given_back, trimmed}
