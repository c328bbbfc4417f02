-- trimmed: counts what was trimmed or deleted from an owned stream before its owner had read it, only under the current
--   owner and epoch. What was ever added and is not left after the last id read was read, or is gone.
-- KEYS 1 data stream 2 ownership hash · ARGV 1 owner 2 epoch 3 last id read 4 messages read up to there, by all owners
--   5 mirror group 6 how many may be noted as gone, all together: "" none more than are 7 last id acknowledged
--   8 messages up to there, by all owners
-- Answers {1 if it can be told, else 0, newly noted, gone all together as it seems, of those not noted, id before
--   which they were}. It can be told while nothing before the last id read is left, or nothing after it; and not by
--   servers before 7.0.
-- Safe to repeat: what is noted is not noted again.
local data, own, owner, epoch, cursor, read = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local mirror, most, acked = ARGV[5], ARGV[6], ARGV[8]

-- ids are decimal strings of up to 20 digits, which Lua's numbers cannot hold
local function below(a, b) return #a < #b or (#a == #b and a < b) end
local function older(a, b)
  local a_ms, a_seq = string.match(a, '(%d+)-(%d+)')
  local b_ms, b_seq = string.match(b, '(%d+)-(%d+)')
  return below(a_ms, b_ms) or (a_ms == b_ms and below(a_seq, b_seq))
end

local now = redis.call('HMGET', own, 'owner', 'epoch', 'gone', 'pos', 'read')
if now[1] ~= owner or now[2] ~= epoch or redis.call('EXISTS', data) == 0 then return {0, 0, 0, 0, ''} end
local info, told = {}, redis.call('XINFO', 'STREAM', data)
for i = 1, #told, 2 do info[told[i]] = told[i + 1] end
local added, first, last = info['entries-added'], info['first-entry'], info['last-generated-id']
local left, before = nil, cursor
if not first or older(cursor, first[1]) then
  left, before = info['length'], first and first[1] or last
elseif last == cursor then
  left = 0
end
if not added or not left then return {0, 0, 0, 0, ''} end

local gone, known = added - left - read, tonumber(now[3] or '')
-- Not known yet: what is missing now was missing before. Fewer than known: the stream was replaced, or a failover lost
-- the end of it. Then the owner and the hash must count alike, or the next take would find a gap between the two.
local settled = now[4] == ARGV[7]
if not settled and (not known or gone < known) then return {0, 0, 0, 0, ''} end
local noted = known and math.max(math.min(gone, known), math.min(gone, tonumber(most) or known)) or gone
if noted ~= known or (settled and now[5] ~= acked) then
  redis.call('XACK', data, mirror, '0-0') -- changes nothing; under maxmemory it lets the rest through
  if not settled then acked = now[5] or 0 end
  redis.call('HSET', own, 'gone', string.format('%.0f', noted), 'read', acked)
  local number = math.max(0, acked + noted)
  redis.pcall('XGROUP', 'SETID', data, mirror, now[4], 'ENTRIESREAD', string.format('%.0f', number))
end
return {1, known and math.max(0, noted - known) or 0, gone, gone - noted, before}
