-- claim: takes one assignment by name, only if the lease of whoever has it has ended. The count rises by one.
-- KEYS 1 announcement stream 2 beats set 3 names hash · ARGV 1 group 2 owner 3 name 4 id it was expired under, or ""
--   5 its count then, or "" 6 ms: an owner that never had a lease is dead when idle for so long 7 server ms after which
--   only a lease that was ended by a word (end_lease) counts as ended, "": never
-- Answers {"ok", id, fields, count, former owner} | {"mine", id} | {"taken", owner} | {"unsure", owner} (its lease has
--   ended, after ARGV 7) | {"free"} (unread or waiting: it goes to whoever has room) | {"gone"} (finished, never
--   announced, or deleted).
-- Not repeatable: the second time it is "mine". One XCLAIM, so of two callers one wins.
local stream, beats, names, group, owner = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]

local id = ARGV[4] ~= '' and ARGV[4] or redis.call('HGET', names, ARGV[3])
if not id then return {'gone'} end
local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not row then
  return {redis.call('XRANGE', stream, id, id)[1] and 'free' or 'gone'}
end
local holder = row[2]
if holder == owner then return {'mine', id} end
if ARGV[5] ~= '' and row[4] ~= tonumber(ARGV[5]) then return {'taken', holder} end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local ends_ms = redis.call('ZSCORE', beats, holder)
local LEAVING = 1e15 -- more in the score of an owner that leaves (beat.lua)
local lives = ends_ms and tonumber(ends_ms) % LEAVING >= now_ms or (not ends_ms and row[3] < tonumber(ARGV[6]))
if lives then return {'taken', holder} end
local by_a_word = ends_ms and tonumber(ends_ms) % LEAVING < 1
-- the server was away, or this claim lay in its socket while it stood still: beats go first
if not by_a_word and ARGV[7] ~= '' and now_ms > tonumber(ARGV[7]) then return {'unsure', holder} end
local entry = redis.call('XCLAIM', stream, group, owner, 0, id)[1]
if not entry then
  redis.call('XACK', stream, group, id) -- 6.2 keeps it in the pending list
  return {'gone'}
end
return {'ok', id, entry[2], string.format('%.0f', row[4] + 1), holder}
