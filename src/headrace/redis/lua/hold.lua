-- hold: takes or extends the locks of deliveries, each only if (owner, count) still holds in the pending list.
-- KEYS 1 stream 2.. the lock of each delivery · ARGV 1 group 2 owner 3 how long a lock lives, ms 4.. id, count
-- Answers how many, if all are "ok"; else a word each: "ok", "gone" or "taken <owner> <count>".
-- Safe to repeat. Each lock is one SET; what a stop half-way leaves out is taken by the next call.
local stream, group, owner, lock_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

-- changes nothing; as the first write it is allowed under maxmemory and lets SET through
redis.call('XACK', stream, group, '0-0')
local words, held = {}, 0
for i = 4, #ARGV, 2 do
  local id, count, word = ARGV[i], tonumber(ARGV[i + 1]), 'ok'
  local lock = KEYS[2 + (i - 4) / 2]
  local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
  if not row then
    word = 'gone'
  elseif row[2] ~= owner or row[4] ~= count then
    word = 'taken ' .. row[2] .. ' ' .. string.format('%.0f', row[4])
  else
    -- SET would overwrite a key of any kind. Whatever is no lock stays, and says "alive" as a lock would.
    local value = redis.pcall('GET', lock)
    if type(value) ~= 'table' then redis.call('SET', lock, owner, 'PX', lock_ms) end
    held = held + 1
  end
  words[#words + 1] = word
end
if held == #words then return held end
return words
