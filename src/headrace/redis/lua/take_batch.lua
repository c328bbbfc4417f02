-- take_batch: claims deliveries for a batch of Spark, unless this page of that batch, or a later one, was claimed.
-- KEYS 1 stream 2 due set 3 batch mark · ARGV 1 group 2 waiting group 3 owner 4 batch 5 page 6 how many at most 7 how
--   many of them new 8 lease ms after which a delivery is taken over, 0: none 9 attempts allowed 10 ms before a last
--   attempt 11 "alone": one that must run alone and nothing else, "mark": nothing, else "" 12 prefix 13 mark lives, s
--   14 server ms after which nothing is taken over, 0 never
-- Answers {"took" | "before", how many, how many of them new, the group's last id, ms to the next one due or -1, 1 if
--   one that must run alone is due}; the last three only where nothing was taken.
-- Safe to repeat: what was claimed is marked in the same step, and the second time it is "before". Nothing is lost if
--   it stops half-way: every delivery is claimed by the new owner before it leaves the place where it was.
--
-- The mark is "<batch> <page>". It is written with the first delivery, and by "mark": a batch that found nothing may
-- ask again, one that found something has got all its rows, whoever asks for them and however late.
local stream, due_set, mark_key, group, waiting_group, owner = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3]
local batch, page, most, most_new = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local lease_ms, attempts, delay_ms, mode, prefix = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10]), ARGV[11], ARGV[12]
local ALONE, TURN = 1e15, 2e15 -- scores of the due set: see due.lua
local LAST_ID = '18446744073709551615-18446744073709551615'

local last_batch, last_page = string.match(redis.call('GET', mark_key) or '-1 0', '^(%-?%d+) (%d+)$')
last_batch, last_page = tonumber(last_batch), tonumber(last_page)
if last_batch > batch or (last_batch == batch and last_page >= page) then return {'before', 0, 0, '0-0', -1, 0} end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

-- a count in full: it has 63 bits (XNACK FATAL sets them all), Lua's numbers 53
local function digits(count)
  return count < 2 ^ 63 and string.format('%.0f', count) or '9223372036854775807'
end

local function ripe(offset, count)
  local lowest, highest = string.format('%.0f', offset), string.format('%.0f', offset + now_ms)
  return redis.call('ZRANGEBYSCORE', due_set, lowest, highest, 'LIMIT', 0, count)
end

-- Files an id in the waiting group, as park.lua does.
local function wait_there(id, count)
  local claim = {'XCLAIM', stream, waiting_group, 'crashed', 0, id, 'FORCE', 'RETRYCOUNT', count, 'JUSTID'}
  local reply = redis.pcall(unpack(claim))
  if reply.err then
    if string.find(reply.err, 'NOGROUP', 1, true) then
      redis.call('XGROUP', 'CREATE', stream, waiting_group, LAST_ID)
    end
    reply = redis.call(unpack(claim))
  end
  return reply[1]
end

-- What waited and is due: the steps of due.lua, without the bodies.
local function take_due(ids)
  local taken = 0
  for _, id in ipairs(ids) do
    local waiting = redis.pcall('XPENDING', stream, waiting_group, id, id, 1)
    local vanished = waiting.err and string.find(waiting.err, 'NOGROUP', 1, true)
    -- with its counts: handed out as new, because once too often beats never
    if vanished then waiting = {{id, '', 0, 0}} end
    if waiting[1] and not redis.call('XPENDING', stream, group, id, id, 1)[1] then
      local count = digits(waiting[1][4] + 1)
      local entry = redis.call('XCLAIM', stream, group, owner, 0, id, 'FORCE', 'RETRYCOUNT', count)[1]
      if entry then taken = taken + 1 end
    end
    if vanished then redis.call('XGROUP', 'CREATE', stream, waiting_group, LAST_ID) end
    redis.call('XACK', stream, waiting_group, id)
    redis.call('ZREM', due_set, id)
  end
  return taken
end

-- What was idle for a lease. One whose next attempt would be its last waits until it can run alone (DESIGN 11b).
local function take_idle(count)
  local taken = 0
  for _, row in ipairs(redis.call('XPENDING', stream, group, 'IDLE', lease_ms, '-', '+', count)) do
    local id = row[1]
    if row[4] + 1 == attempts and attempts > 1 then
      if wait_there(id, digits(row[4])) then
        redis.call('ZADD', due_set, string.format('%.0f', now_ms + delay_ms + ALONE), id)
      end
      redis.call('XACK', stream, group, id)
    elseif redis.call('XCLAIM', stream, group, owner, 0, id, 'RETRYCOUNT', digits(row[4] + 1))[1] then
      taken = taken + 1
    else
      redis.call('XACK', stream, group, id) -- trimmed: 6.2 keeps it in the pending list
    end
  end
  return taken
end

-- What nobody was given yet. A copy that replay made for another group is not for this one: acked unseen.
local function take_new(count)
  local taken, reply = 0, redis.call('XREADGROUP', 'GROUP', group, owner, 'COUNT', count, 'STREAMS', stream, '>')
  for _, entry in ipairs(reply and reply[1] and reply[1][2] or {}) do
    local fields = entry[2] or {}
    if fields[1] == prefix .. 'original_id' and fields[3] == prefix .. 'only' and fields[4] ~= group then
      redis.call('XACK', stream, group, entry[1])
    else
      taken = taken + 1
    end
  end
  return taken
end

local taken, new = 0, 0
if mode == 'alone' then
  local ids = ripe(TURN, 1)
  if #ids == 0 then ids = ripe(ALONE, 1) end
  taken = take_due(ids)
elseif mode ~= 'mark' then
  taken = take_due(ripe(0, most))
  -- after its deadline it lay in the socket of a server that stood still: the renewals that lie there, too, go first
  local in_time = ARGV[14] == '0' or now_ms <= tonumber(ARGV[14])
  if lease_ms ~= '0' and in_time and taken < most then taken = taken + take_idle(most - taken) end
  if taken < most and most_new > 0 then new = take_new(math.min(most - taken, most_new)) end
  taken = taken + new
end
if taken > 0 or mode == 'mark' then
  redis.call('XACK', stream, group, '0-0') -- changes nothing; under maxmemory it lets SET through
  redis.call('SET', mark_key, string.format('%.0f %.0f', batch, page), 'EX', ARGV[13])
end

if taken > 0 or mode == 'mark' then return {'took', taken, new, '0-0', -1, 0} end

local last_id, next_ms = '0-0', -1
for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local about = {}
  for i = 1, #info, 2 do about[info[i]] = info[i + 1] end
  if about.name == group then last_id = about['last-delivered-id'] end
end
local first = redis.call('ZRANGE', due_set, 0, 0, 'WITHSCORES')
if not first[2] then return {'took', 0, 0, last_id, next_ms, 0} end -- at rest, of many streams, every command counts
if tonumber(first[2]) < ALONE then next_ms = math.max(0, tonumber(first[2]) - now_ms) end
return {'took', 0, 0, last_id, next_ms, math.min(1, #ripe(TURN, 1) + #ripe(ALONE, 1))}
