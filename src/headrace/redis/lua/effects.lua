-- effects: acks one delivery and writes its effects, all or nothing, only if (owner, count) still holds.
-- KEYS 1 stream 2.. keys of effects, at last the completion marker if there is a window · ARGV 1 group 2 owner 3 id
--   4 count 5 delete: no, acked, sole 6 waiting group 7 window ms or 0 8 result 9.. command, number of its key among
--   the effects' keys, number of arguments, arguments. Commands: XADD SET HSET HINCRBY ZADD, without options.
-- Answers "ok", "duplicate" (the marker is there: acked, no effect written), "gone", "taken <owner> <count>", or
--   "refused <n>: <why>" (effect n could fail: nothing written, the delivery is still held).
-- Safe to repeat: the second time it is "gone". Lua does not roll back, so every effect is checked before the first
--   write. Not seen beforehand, before Redis 7.0: the command of an effect that the ACL forbids.
local stream, group, owner, id, count = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local delete, waiting_group, window_ms, result = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local TYPES = {XADD = 'stream', SET = 'string', HSET = 'hash', HINCRBY = 'hash', ZADD = 'zset'}
local MOST_ARGUMENTS = 7000 -- Lua passes fewer than 8,000 to one command
local MOST_BYTES = 512 * 1024 * 1024
local MOST_SUM = 9.2e18 -- below 2^63 by more than a double's error at that size

local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not row then return 'gone' end
if row[2] ~= owner or row[4] ~= count then
  return 'taken ' .. row[2] .. ' ' .. string.format('%.0f', row[4])
end

-- What each key will hold by then: its type, and of hashes the fields that effects before have set.
local type_of, field_of = {}, {}

-- The number a text stands for, if the servers' own strict reading takes it for a 64-bit integer; else nil.
local function integer(text)
  if not (string.match(text, '^%-?[1-9]%d*$') or text == '0') or #text > 20 then return nil end
  local number = tonumber(text)
  return math.abs(number) <= MOST_SUM and number or nil
end

-- Whether every server takes a text for a score: plain decimals, neither too large nor rounded to zero.
local function is_score(text)
  if text == 'inf' or text == '-inf' then return true end
  local digits, exponent = string.match(text, '^%-?([%d.]+)(.*)$')
  if not digits or #text > 64 then return false end
  if not (string.match(digits, '^%d+$') or string.match(digits, '^%d+%.%d+$')) then return false end
  if not (exponent == '' or string.match(exponent, '^[eE][+-]?%d+$')) then return false end
  local size = math.abs(tonumber(text))
  return size <= 1e300 and (size >= 1e-300 or not string.find(digits, '[1-9]'))
end

-- What is wrong with the arguments of an effect; nil if nothing is. Notes what the effect will leave behind.
local function fault(command, key, arguments)
  local n = #arguments
  if command == 'SET' then
    if n ~= 1 then return 'SET takes one value' end
  elseif command == 'HINCRBY' then
    if n ~= 2 then return 'HINCRBY takes a field and an integer' end
    local field = arguments[1]
    local now = field_of[key][field] or (type_of[key] == 'hash' and redis.call('HGET', key, field)) or '0'
    local had, more = type(now) == 'number' and now or integer(now), integer(arguments[2])
    if not had then return 'the field holds no integer' end
    if not more then return 'the increment is no 64-bit integer' end
    if math.abs(had + more) > MOST_SUM then return 'the sum leaves 64 bits' end
    field_of[key][field] = had + more
  elseif n < 2 or n % 2 == 1 then
    return command .. ' takes pairs'
  elseif command == 'XADD' then
    if type_of[key] == 'stream' and redis.call('EXISTS', key) == 1 then
      local info = redis.call('XINFO', 'STREAM', key)
      for i = 1, #info, 2 do
        if info[i] == 'last-generated-id' and string.find(info[i + 1], '18446744073709551615-', 1, true) then
          return 'the stream has no ids left'
        end
      end
    end
  elseif command == 'HSET' then
    for i = 1, n, 2 do field_of[key][arguments[i]] = arguments[i + 1] end
  elseif command == 'ZADD' then
    for i = 1, n, 2 do
      if not is_score(arguments[i]) then return 'a score is no finite number' end
    end
  end
end

-- ── check everything ──
local writes, bytes, at = {}, 0, 9
while at <= #ARGV do
  local refused = 'refused ' .. (#writes + 1) .. ': '
  local command, key, n = ARGV[at], KEYS[1 + tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
  if not TYPES[command] then return refused .. command .. ' is no effect: use XADD, SET, HSET, HINCRBY or ZADD' end
  if n > MOST_ARGUMENTS then return refused .. 'more than ' .. MOST_ARGUMENTS .. ' arguments' end

  local arguments = {}
  for i = 1, n do
    arguments[i] = ARGV[at + 2 + i]
    bytes = bytes + #arguments[i]
  end
  if bytes > MOST_BYTES then return refused .. 'more than 512 MB' end
  at = at + 3 + n

  type_of[key] = type_of[key] or redis.call('TYPE', key).ok
  field_of[key] = field_of[key] or {}
  if type_of[key] ~= 'none' and type_of[key] ~= TYPES[command] then
    return refused .. 'the key holds a ' .. type_of[key]
  end
  local why = fault(command, key, arguments)
  if why then return refused .. why end
  type_of[key] = TYPES[command]

  if command == 'XADD' then table.insert(arguments, 1, '*') end
  writes[#writes + 1] = {command, key, unpack(arguments)}
end

-- ── rights ──
-- One that is missing must show before the first write: an XACK of no entry changes nothing.
redis.call('XACK', stream, group, '0-0')
for _, write in ipairs(redis.acl_check_cmd and writes or {}) do
  if not redis.acl_check_cmd(unpack(write)) then
    return redis.error_reply("NOPERM this user has no permissions to run the '" .. write[1] .. "' command of an effect")
  end
end

-- ── write ──
-- the owner's own XCLAIM is allowed under maxmemory, and as the first write it lets the others through
redis.call('XCLAIM', stream, group, owner, 0, id, 'JUSTID')
local word = 'ok'
if window_ms ~= '0' and not redis.call('SET', KEYS[#KEYS], result, 'NX', 'PX', window_ms) then word = 'duplicate' end
if word == 'ok' then
  for _, write in ipairs(writes) do redis.call(unpack(write)) end
end

local done = {id}
if delete == 'acked' then
  -- the only form of XACKDEL that leaves what another group has not finished
  redis.call('XACKDEL', stream, group, 'ACKED', 'IDS', #done, unpack(done))
else
  redis.call('XACK', stream, group, unpack(done))
end
if delete == 'sole' then
  -- only if no group but this one and its waiting group could still want it, and it does not wait there
  local others, waits = 0, 0
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    if info[2] == waiting_group then
      waits = redis.call('XPENDING', stream, waiting_group)[1]
    elseif info[2] ~= group then
      others = others + 1
    end
  end
  for _, done_id in ipairs(others == 0 and done or {}) do
    if waits == 0 or #redis.call('XPENDING', stream, waiting_group, done_id, done_id, 1) == 0 then
      redis.call('XDEL', stream, done_id)
    end
  end
end
return word
