-- take: the moment of takeover, in the data stream's slot: who may acknowledge from now on, and from where to go on.
-- KEYS 1 data stream 2 ownership hash · ARGV 1 assignment id 2 its count 3 owner 4 mirror group 5 "" or
--   "afresh": forget the tries, "force": also if it seems older 6 where a stream begins that this group never owned:
--   an id, or $ for its end
-- Answers {"ok", epoch, position, tries, read, gap} | {"done"} | {"stale" | "newer", id, count, owner}: stale if this
--   assignment was taken with a higher count, newer if a later announcement of the same stream was. Gap is
--   "<n> <id> <id>": so many messages between these ids were trimmed or deleted before anybody read them; or "".
-- Safe to repeat: equal and same owner is answered again. Checked before the first write; no ack falls in between.
--
-- The ownership hash, written here and in begin, pos_ack, set_aside, trimmed, give_up and finish:
--   e, n      the assignment and the count it was taken with. (e, n) only grows: that is what makes a late take of a
--             former owner harmless, so a count is never taken back for assignments (no release by count - 1)
--   owner     who may acknowledge; "" nobody: it was given back or is finished
--   epoch     rises with every take; with the owner it is the fence of every other word
--   pos, read the last acknowledged id, and how many messages were acknowledged up to there
--   gone      how many were ever added and will never be read: read + gone is the position's number among all that were
--             added. Not there: nobody knows (servers before 7.0)
--   gap       what the last take found gone
--   tries     how often handlers have begun since the last progress (begin.lua)
--   done      the assignment that was finished here
local data, own, id, count, owner, mirror = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local how, start = ARGV[5], ARGV[6]

-- ids and counts are decimal strings of up to 20 digits, which Lua's numbers cannot hold
local function below(a, b) return #a < #b or (#a == #b and a < b) end
local function older(a, b)
  local a_ms, a_seq = string.match(a, '(%d+)-(%d+)')
  local b_ms, b_seq = string.match(b, '(%d+)-(%d+)')
  return below(a_ms, b_ms) or (a_ms == b_ms and below(a_seq, b_seq))
end

local was = redis.call('HMGET', own, 'e', 'n', 'owner', 'epoch', 'pos', 'tries', 'done', 'read', 'gone', 'gap')
local read = tonumber(was[8] or 0)
if was[7] == id then return {'done'} end
if was[1] and how ~= 'force' then
  if was[1] == id and was[2] == count and was[3] == owner then
    return {'ok', tonumber(was[4]), was[5], tonumber(was[6] or 0), read, was[10] or ''}
  end
  if older(id, was[1]) then return {'newer', was[1], was[2], was[3]} end
  if was[1] == id and not below(was[2], count) then return {'stale', was[1], was[2], was[3]} end
end

redis.call('XACK', data, mirror, '0-0') -- changes nothing; under maxmemory it lets the rest through
local position = was[5]
if not position then
  -- finished, kept and forgotten since, or never owned: the mirror group remembers
  if redis.call('EXISTS', data) == 1 then
    for _, info in ipairs(redis.call('XINFO', 'GROUPS', data)) do
      if info[2] == mirror then position = info[8] end
    end
  end
  position = position or start
end
local made = redis.pcall('XGROUP', 'CREATE', data, mirror, position, 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end

-- What was ever added and is not left after the position was read, or is gone. How many are left is known while nothing
-- before the position is, or nothing after it. On the first take whatever is missing was never anybody's.
local info, told, gap = {}, redis.call('XINFO', 'STREAM', data), ''
for i = 1, #told, 2 do info[told[i]] = told[i + 1] end
local added, first, last = info['entries-added'], info['first-entry'], info['last-generated-id']
if position == '$' then position = last end
local behind = not first or older(position, first[1])
if added and (behind or last == position) then
  local known, gone = tonumber(was[9] or ''), added - (behind and info['length'] or 0) - read
  if known and gone > known then
    -- With nothing left after the position they were before it, and its owner did not live to see that.
    local after, before = behind and position or '0-0', behind and (first and first[1] or last) or position
    gap = string.format('%.0f %s %s', gone - known, after, before)
  end
  redis.call('HSET', own, 'gone', string.format('%.0f', gone))
  local number = string.format('%.0f', math.max(0, read + gone))
  redis.pcall('XGROUP', 'SETID', data, mirror, position, 'ENTRIESREAD', number)
end
local tries = was[1] == id and how == '' and tonumber(was[6] or 0) or 0 -- a new announcement starts afresh
local epoch = redis.call('HINCRBY', own, 'epoch', 1)
redis.call('HSET', own, 'e', id, 'n', count, 'owner', owner, 'pos', position, 'tries', tries, 'gap', gap)
redis.call('HDEL', own, 'done')
redis.call('PERSIST', own)
return {'ok', epoch, position, tries, read, gap}
