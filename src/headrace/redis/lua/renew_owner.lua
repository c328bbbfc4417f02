-- renew_owner: resets the idle clock of what one owner holds, where it has been idle for a given time. No ids sent.
-- KEYS 1 stream · ARGV 1 group 2 owner 3 min idle ms 4 start: "-", then the answered one 5 chunk (at most 200)
-- Answers {start of the next chunk or "", how many renewed, {trimmed ids}}.
-- Safe to repeat. For a parent that renews for its children: only the owner named is renewed, whoever asks.
local stream, group, owner, chunk = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[5])

local rows = redis.call('XPENDING', stream, group, 'IDLE', ARGV[3], ARGV[4], '+', chunk, owner)
if #rows == 0 then return {'', 0, {}} end

local claim, kept, trimmed = {'XCLAIM', stream, group, owner, 0}, {}, {}
for _, row in ipairs(rows) do claim[#claim + 1] = row[1] end
claim[#claim + 1] = 'JUSTID'
for _, id in ipairs(redis.call(unpack(claim))) do kept[id] = true end
for _, row in ipairs(rows) do
  if not kept[row[1]] then trimmed[#trimmed + 1] = row[1] end
end
return {#rows == chunk and '(' .. rows[#rows][1] or '', #rows - #trimmed, trimmed}
