-- set_aside: appends one message of an owned stream to its dead letters and moves the position past it, only under the
--   current owner and epoch.
-- KEYS 1 data stream 2 ownership hash 3 dead-letter stream · ARGV 1 owner 2 epoch 3 id 4 messages since the last ack
--   5 mirror group 6 MAXLEN of the dead letters or 0 7 prefix 8.. field, value, ... about the burial, names with the
--   prefix
-- Answers "ok <id of the dead letter>", "old" (acknowledged before), "trimmed" (passed, nothing left to append) or
--   "taken <owner> <epoch>".
-- Safe to repeat: the second time it is "old". Appended before the position moves; both or neither.
-- The dead letter has the layout that bury.lua describes, and <prefix>owned: replay appends it again (replay.lua).
local data, own, dead_letters = KEYS[1], KEYS[2], KEYS[3]
local owner, epoch, id, mirror, maxlen, prefix = ARGV[1], ARGV[2], ARGV[3], ARGV[5], ARGV[6], ARGV[7]
local WIDE = 7000

local now = redis.call('HMGET', own, 'owner', 'epoch', 'pos', 'gone')
if now[1] ~= owner or now[2] ~= epoch then return 'taken ' .. (now[1] or '') .. ' ' .. (now[2] or '0') end
-- ids are decimal strings of up to 20 digits, which Lua's numbers cannot hold
local function below(a, b) return #a < #b or (#a == #b and a < b) end
local ms, seq = string.match(id, '(%d+)-(%d+)')
local at_ms, at_seq = string.match(now[3], '(%d+)-(%d+)')
if not (below(at_ms, ms) or (at_ms == ms and below(at_seq, seq))) then return 'old' end

redis.call('XACK', data, mirror, '0-0') -- changes nothing; under maxmemory it lets the rest through
local answer = 'trimmed'
local entry = redis.call('XRANGE', data, id, id)[1]
if entry then
  local append, fields = {'XADD', dead_letters}, entry[2]
  if maxlen ~= '0' then append[3], append[4], append[5] = 'MAXLEN', '~', maxlen end
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
  append[#append + 1] = prefix .. 'owned'
  append[#append + 1] = '1'
  for i = 8, #ARGV do append[#append + 1] = ARGV[i] end
  answer = 'ok ' .. redis.call(unpack(append))
end

redis.call('HSET', own, 'pos', id, 'tries', 0)
local read = redis.call('HINCRBY', own, 'read', ARGV[4])
local number = string.format('%.0f', math.max(0, read + tonumber(now[4] or 0))) -- among all that were ever added
-- pcall: 6.2 cannot be told how many were read, and somebody may have deleted the mirror: then only the view of others
-- is lost
if redis.pcall('XGROUP', 'SETID', data, mirror, id, 'ENTRIESREAD', number).err then
  redis.pcall('XGROUP', 'SETID', data, mirror, id)
end
return answer
