-- beat: one lease for an owner and all its assignments, and what it needs to know to take its fair share.
-- KEYS 1 announcement stream 2 beats set 3 names hash 4 due set · ARGV 1 group 2 owner 3 lease ms,
--   0: only tell 4 "leaving": keeps what it has for now and takes nothing more, so it is no sharer; "renew": for
--   somebody else, only if the lease has not ended, because its owner must hear that first; else ""
-- Answers {1 alive | 0 the lease had ended, and an heir may have taken some, live owners, assignments there are, mine,
--   server ms}.
-- Safe to repeat. One ZADD whatever the number of assignments: renewing 10,000 of them one by one took 4 % of a server.
local stream, beats, names, due_set, group, owner = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], ARGV[2]

local LEAVING = 1e15 -- more in the score of an owner that leaves: its lease ends at score % 10^15

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local pending = redis.call('XPENDING', stream, group)
local score = tonumber(redis.call('ZSCORE', beats, owner) or 0)
local ended_ms, how = score % LEAVING, ARGV[4]
if ARGV[3] ~= '0' and (how ~= 'renew' or ended_ms >= now_ms) then
  local leaves = how == 'leaving' or (how == 'renew' and score >= LEAVING)
  local ends_ms = now_ms + tonumber(ARGV[3]) + (leaves and LEAVING or 0)
  redis.call('XACK', stream, group, '0-0') -- changes nothing; under maxmemory it lets ZADD through
  redis.call('ZADD', beats, string.format('%.0f', ends_ms), owner)
end

local mine = 0
for _, consumer in ipairs(pending[4] or {}) do
  if consumer[1] == owner then mine = tonumber(consumer[2]) end
end
local owners = redis.call('ZCOUNT', beats, string.format('%.0f', now_ms), string.format('(%.0f', LEAVING))
-- The hash knows those that nobody has read yet; what others announced without it is pending or waiting at least.
local there = math.max(redis.call('HLEN', names), pending[1] + redis.call('ZCARD', due_set))
return {ended_ms >= now_ms and 1 or 0, owners, there, mine, now_ms}
