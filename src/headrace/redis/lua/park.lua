-- park: retry or release. Deliveries move to the waiting group's pending list, each only if (owner, count) still holds.
-- KEYS 1 stream 2 due set · ARGV 1 group 2 waiting group 3 owner 4 delay ms, negative: until replayed 5 mark: why it
--   waits 6 "alone" if it must run alone, else "" 7.. id, count, count to keep (count: retry; count - 1: release)
-- Answers a word each: "ok", "gone", "trimmed" or "taken <owner> <count>".
-- Safe to repeat: the second time they are "gone". Filed in the waiting group before it leaves the main one.
local stream, due_set, group, waiting_group, owner = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local delay_ms, mark = tonumber(ARGV[4]), ARGV[5]
local ALONE = 1e15 -- the due set's score is due ms; 10^15 more: must run alone (due.lua)

local time = redis.call('TIME')
local due_ms = time[1] * 1000 + math.ceil(time[2] / 1000) + delay_ms -- rounded up: never early
if ARGV[6] == 'alone' then due_ms = due_ms + ALONE end

-- a count in full: it has 63 bits (XNACK FATAL sets them all), Lua's numbers 53
local function digits(count)
  return count < 2 ^ 63 and string.format('%.0f', count) or '9223372036854775807'
end

-- Files an id in the waiting group. Made at the highest id there is, that group never delivers anything by itself.
-- XCLAIM is allowed under maxmemory, and as the first write it lets XGROUP and ZADD through.
local function wait_there(id, count)
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

local words = {}
for i = 7, #ARGV, 3 do
  local id, count, keep, word = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), 'ok'
  local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
  if not row then
    word = 'gone'
  elseif row[2] ~= owner or row[4] ~= count then
    word = 'taken ' .. row[2] .. ' ' .. string.format('%.0f', row[4])
  else
    if not wait_there(id, digits(keep)) then
      word = 'trimmed'
    elseif delay_ms >= 0 then
      redis.call('ZADD', due_set, string.format('%.0f', due_ms), id)
    else
      redis.call('ZREM', due_set, id)
    end
    redis.call('XACK', stream, group, id)
  end
  words[#words + 1] = word
end
return words
