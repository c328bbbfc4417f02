-- replay: gives a buried or parked message back to the one group that gave it up, as attempt 1.
-- KEYS 1 stream 2 due set 3 dead-letter stream · ARGV 1 group 2 waiting group 3 id of the dead letter, "": parked
--   without one 4 original id 5 prefix
-- Answers "same <id>" (in place), "copy <id>" (the original was trimmed, or its stream is owned), "gone", "pending"
--   (held just now), "trimmed" (parked, and nothing is left) or "foreign" (a dead letter without <prefix>n: not ours).
-- Safe to repeat: the second time it is "gone". Filed or appended before the dead letter is deleted.
--
-- A copy is seen by every group of the stream, so its first fields say whom it is for, and the rest is the original:
--   _original_id <id>, _only <group>, then the original fields as the dead letter has them (bury.lua, 1).
local stream, due_set, dead_letters = KEYS[1], KEYS[2], KEYS[3]
local group, waiting_group, dead, id, prefix = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local WIDE = 7000

local letter
if dead ~= '' then
  letter = redis.call('XRANGE', dead_letters, dead, dead)[1]
  if not letter then return 'gone' end
elseif not redis.call('XPENDING', stream, waiting_group, id, id, 1)[1] then
  return 'gone'
end
-- a message of an owned stream (set_aside.lua): its owner is past it, so it comes again at the end
local owned = false
for i = #(letter and letter[2] or {}) - 1, 1, -2 do
  if letter[2][i] == prefix .. 'n' then break end
  owned = owned or letter[2][i] == prefix .. 'owned'
end
if not owned and redis.call('XPENDING', stream, group, id, id, 1)[1] then return 'pending' end

-- An XACK of what is not pending changes nothing and is allowed under maxmemory: it lets the rest through.
redis.call('XACK', stream, group, id)

if not owned and redis.call('XRANGE', stream, id, id)[1] then
  local claim = {'XCLAIM', stream, waiting_group, 'replayed', 0, id, 'FORCE', 'RETRYCOUNT', 0, 'JUSTID'}
  local reply = redis.pcall(unpack(claim))
  if reply.err then
    if string.find(reply.err, 'NOGROUP', 1, true) then
      redis.call('XGROUP', 'CREATE', stream, waiting_group, '18446744073709551615-18446744073709551615')
    end
    redis.call(unpack(claim))
  end
  local time = redis.call('TIME')
  redis.call('ZADD', due_set, string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)), id)
  if letter then redis.call('XDEL', dead_letters, dead) end
  return 'same ' .. id
end

if not letter then
  redis.call('XACK', stream, waiting_group, id)
  redis.call('ZREM', due_set, id)
  return 'trimmed'
end

local fields, n = letter[2], nil
for i = #fields - 1, 1, -2 do
  if fields[i] == prefix .. 'n' then
    n = tonumber(fields[i + 1])
    break
  end
end
if not n then return 'foreign' end
if n > WIDE then n = 2 end -- packed in one field

-- a copy that was buried again: its first fields are ours, not the original's
local first = 1
if fields[1] == prefix .. 'original_id' and fields[3] == prefix .. 'only' then
  id, first = fields[2], 5
end
local append = {'XADD', stream, '*', prefix .. 'original_id', id, prefix .. 'only', group}
for i = first, n do append[#append + 1] = fields[i] end
local copy = redis.call(unpack(append))
redis.call('XDEL', dead_letters, dead)
return 'copy ' .. copy
