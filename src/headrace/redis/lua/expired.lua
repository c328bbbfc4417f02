-- expired: tells which assignments belong to owners whose lease has ended, and leaves them as they are.
-- KEYS 1 announcement stream 2 beats set · ARGV 1 group 2 owner who asks 3 how many 4 ms: an owner that never had a
--   lease is dead when idle for so long
-- Answers {server ms, {{id, fields, count, owner}, ..}}; fields are empty if the entry was deleted.
-- Safe to repeat: it writes nothing.
local stream, beats, group, owner, wanted = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local LEAVING = 1e15 -- more in the score of an owner that leaves (beat.lua)
local found = {}
for _, consumer in ipairs(redis.call('XPENDING', stream, group)[4] or {}) do
  local former, idle_ms = consumer[1], nil
  local ends_ms = redis.call('ZSCORE', beats, former)
  if not ends_ms then idle_ms = ARGV[4] elseif tonumber(ends_ms) % LEAVING < now_ms then idle_ms = 0 end
  if former ~= owner and idle_ms and #found < wanted then
    local rows = redis.call('XPENDING', stream, group, 'IDLE', idle_ms, '-', '+', wanted - #found, former)
    for _, row in ipairs(rows) do
      local entry = redis.call('XRANGE', stream, row[1], row[1])[1]
      found[#found + 1] = {row[1], entry and entry[2] or {}, string.format('%.0f', row[4]), former}
    end
  end
end
return {now_ms, found}
