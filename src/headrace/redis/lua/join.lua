-- join: enters an owner into the group's owners, unless its name is fixed and another live process has it.
-- KEYS 1 stream 2 owners hash · ARGV 1 group 2 owner 3 token of this process 4 lease ms 5 "fixed" or ""
--   6 info: JSON object
-- Answers {"ok" | "taken", the entry that was there or "", longest lease of the live owners, server ms}.
-- Safe to repeat with the same token. One HSET, so there is no half-way.
--
-- The hash has a field for each owner and one without a name, written here, in stay.lua and in remove_owner.lua:
--   <owner>  {"seen_ms":<server ms>,"lease_ms":<ms>,"token":"<letters and digits>","owner":"<owner>",<the info's own
--            members>}; the name again, because the values are all that a worker may ask for
--   ""       <lease ms> <when an owner with that lease was last seen>; ... so that nobody has to read all entries
-- An owner is live for three leases after it was seen. A note of a lease longer than any (config.LEASE_LIMIT_MS) or
-- of a time to come is none of ours: somebody wrote it who wants that nobody is rescued.
local stream, owners, group, owner = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local token, lease_ms, fixed, info = ARGV[3], tonumber(ARGV[4]), ARGV[5] == 'fixed', ARGV[6]

local LONGEST_MS = 86400000

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local before = redis.call('HGET', owners, owner) or ''
local seen, its_lease, its_token = string.match(before, '^{"seen_ms":(%d+),"lease_ms":(%d+),"token":"(%w*)"')

local leases, longest_ms = {string.format('%.0f %.0f;', lease_ms, now_ms)}, lease_ms
for lease, when in string.gmatch(redis.call('HGET', owners, '') or '', '(%d+) (%d+);') do
  local its_ms, ago_ms = tonumber(lease), math.abs(now_ms - tonumber(when))
  if its_ms ~= lease_ms and its_ms <= LONGEST_MS and ago_ms < 3 * its_ms then
    leases[#leases + 1] = lease .. ' ' .. when .. ';'
    longest_ms = math.max(longest_ms, its_ms)
  end
end

if fixed and seen and its_token ~= token and now_ms - tonumber(seen) < math.max(tonumber(its_lease), lease_ms) then
  return {'taken', before, longest_ms, now_ms}
end
-- An XACK of no entry changes nothing and is allowed under maxmemory: it lets HSET through, because a full server
-- is emptied by workers that can start.
redis.call('XACK', stream, group, '0-0')
local head = string.format('{"seen_ms":%.0f,"lease_ms":%.0f,"token":"%s","owner":', now_ms, lease_ms, token)
head = head .. cjson.encode(owner)
local rest = string.match(info, '^%s*{%s*(.-)%s*}%s*$')
local entry = head .. (rest == '' and '' or ',') .. rest .. '}'
redis.call('HSET', owners, owner, entry, '', table.concat(leases))
return {'ok', before, longest_ms, now_ms}
