-- bury: appends the dead letter, then acks the delivery, only if (owner, count) still holds.
-- KEYS 1 stream 2 dead-letter stream · ARGV 1 group 2 owner 3 id 4 count 5 MAXLEN of the dead letters or 0 6 prefix
--   7.. field, value, ... about the burial, names with the prefix
-- Answers "ok <id of the dead letter>", "gone", "trimmed" (nothing left to bury) or "taken <owner> <count>".
-- Safe to repeat: the second time it is "gone". Append first: if that fails, the delivery stays pending.
--
-- A dead letter, field by field (with the prefix "_"):
--   1. the original fields, byte for byte, in order, repeated names included. More than 7,000 words (names and
--      values) are more than Lua can pass to one command; then instead the one field _packed, whose value is, for
--      each word in turn, its length in decimal digits, a colon and its bytes: 2:id2:42
--   2. _n: how many words the original has. It ends the original: names there may start with "_" too, so look
--      for the last field named _n, never for the first. _n > 7000 says that the original is packed.
--   3. the fields given in ARGV, none of which may be called _n or _packed.
local stream, dead_letters, group, owner, id = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local count, maxlen, prefix = tonumber(ARGV[4]), ARGV[5], ARGV[6]
local WIDE = 7000

local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not row then return 'gone' end
if row[2] ~= owner or row[4] ~= count then
  return 'taken ' .. row[2] .. ' ' .. string.format('%.0f', row[4])
end

-- Without the right to ack, nothing may be appended: an XACK of no entry changes nothing and shows that it is there.
redis.call('XACK', stream, group, '0-0')
-- the owner's own XCLAIM is allowed under maxmemory, and as the first write it lets XADD through
redis.call('XCLAIM', stream, group, owner, 0, id, 'JUSTID')
local entry = redis.call('XRANGE', stream, id, id)[1]
if not entry then
  redis.call('XACK', stream, group, id)
  return 'trimmed'
end

local append, fields = {'XADD', dead_letters}, entry[2]
if maxlen ~= '0' then
  append[3], append[4], append[5] = 'MAXLEN', '~', maxlen
end
append[#append + 1] = '*'
if #fields > WIDE then
  local packed = {}
  for i, word in ipairs(fields) do packed[i] = #word .. ':' .. word end
  append[#append + 1] = prefix .. 'packed'
  append[#append + 1] = table.concat(packed)
else
  for _, word in ipairs(fields) do append[#append + 1] = word end
end
append[#append + 1] = prefix .. 'n'
append[#append + 1] = string.format('%.0f', #fields)
for i = 7, #ARGV do append[#append + 1] = ARGV[i] end

local dead = redis.call(unpack(append))
redis.call('XACK', stream, group, id)
return 'ok ' .. dead
