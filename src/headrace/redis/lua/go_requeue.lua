-- go_requeue: what redis-stream-client-go does in four commands, in one step: an entry of its load balancer stream that
--   nobody has a lock on is appended again (or to the dead letters), acked and deleted.
-- KEYS 1 load balancer stream 2 dead-letter stream 3 lock · ARGV 1 group 2 way: "retry", "release" (my own: the lock
--   is not looked at and the retry count stays) or "unparseable" (no lock is known: to the dead letters) 3 consumer and
--   4 value of the lock, for "release" 5 min idle ms 6 max retries 7 MAXLEN of the dead letters, 0: all 8 id
--   9 server ms after which "retry" goes by no missing lock
-- Answers "requeued <id>", "buried <id>", "alive", "fresh", "gone", "trimmed", "kept" (too wide to be copied), "unsure"
--   (nobody has a lock, after ARGV 9) or "taken <consumer> <count>".
-- Safe to repeat: the second time it is "gone". Append first: if that fails, the entry stays pending.
local stream, dead_letters, lock, group, way = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local max_retries, maxlen, id = tonumber(ARGV[6]), ARGV[7], ARGV[8]

local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not row then return 'gone' end
if way == 'release' then
  local holder = redis.call('GET', lock)
  if row[2] ~= ARGV[3] or (holder and holder ~= ARGV[4]) then
    return 'taken ' .. row[2] .. ' ' .. string.format('%.0f', row[4])
  end
elseif row[3] >= 0 and row[3] < tonumber(ARGV[5]) then
  return 'fresh'
elseif way == 'retry' then
  if redis.call('EXISTS', lock) == 1 then return 'alive' end
  -- the server was away, or this lay in its socket while it stood still: live owners lock first
  local time = redis.call('TIME')
  if time[1] * 1000 + math.floor(time[2] / 1000) > tonumber(ARGV[9]) then return 'unsure' end
end

redis.call('XACK', stream, group, '0-0') -- changes nothing; under maxmemory it lets XADD through
local entry = redis.call('XRANGE', stream, id, id)[1]
if not entry then
  redis.call('XACK', stream, group, id)
  return 'trimmed'
end
if #entry[2] > 7000 then return 'kept' end -- more than Lua can pass on
local words, retries = {}, 0
for i = 1, #entry[2], 2 do
  local name, value = entry[2][i], entry[2][i + 1]
  if name == '_retry_count' then
    retries = #value < 10 and string.match(value, '^%d+$') and tonumber(value) or 0
  elseif name ~= '_dlq_reason' then
    words[#words + 1], words[#words + 2] = name, value
  end
end
local next_retries = way == 'retry' and retries + 1 or retries
words[#words + 1], words[#words + 2] = '_retry_count', string.format('%.0f', next_retries)
local word
if way == 'unparseable' or next_retries > max_retries then
  words[#words + 1] = '_dlq_reason'
  words[#words + 1] = way == 'unparseable' and way or 'max_retries_exceeded'
  local append = {'XADD', dead_letters}
  if maxlen ~= '0' then append[3], append[4], append[5] = 'MAXLEN', '~', maxlen end
  append[#append + 1] = '*'
  for _, one in ipairs(words) do append[#append + 1] = one end
  word = 'buried ' .. redis.call(unpack(append))
else
  word = 'requeued ' .. redis.call('XADD', stream, '*', unpack(words))
end
redis.call('XACK', stream, group, id)
redis.call('XDEL', stream, id)
if way == 'release' then redis.call('DEL', lock) end
return word
