-- requeue: appends a copy of a pending message (or its dead letter), then acks it. Without an owner: only what is idle
--   enough and has no lock, the founding RFC's recovery. With one: only what is (owner, count), whatever the lock says.
-- KEYS 1 stream 2 dead-letter stream 3.. the lock of each id · ARGV 1 group 2 owner or "" 3 way: "retry", "release"
--   (the retry count stays) or "bury" 4 min idle ms 5 max retries 6 MAXLEN of the dead letters, 0: all, "off": none
--   7 prefix 8 server ms after which to do nothing, 0: never 9 delete the original: "no", "acked" or "sole" 10 waiting
--   group 11 error and 12 reason of a burial 13.. id, count (the count is looked at with an owner only)
-- Answers server ms or "late", then a word each: "requeued <id>", "buried <id>", "alive" (locked), "fresh", "gone",
--   "trimmed", "kept" (exhausted, no dead letters) or "taken <owner> <count>".
-- Safe to repeat: the second time they are "gone". Append first: if that fails, the message stays pending.
--
-- A copy is the original's fields, then <prefix>retry_count and <prefix>original_id; both are taken out wherever they
-- stand (other clients of the protocol write them in any order). A dead letter is what bury.lua describes.
local stream, dead_letters, group, owner, way = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local min_idle_ms, max_retries, maxlen, prefix = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[7]
local delete, waiting_group, why, reason = ARGV[9], ARGV[10], ARGV[11], ARGV[12]
local RETRY, RELEASE = '~retry', '~release' -- who holds what leave.lua has left: its lock is its timer
local WIDE = 7000 -- words from which on an original is packed into one field

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
-- queued behind a pause of the server: the renewals of locks queued with it must go first
if tonumber(ARGV[8]) > 0 and now_ms > tonumber(ARGV[8]) then return {'late'} end

-- Words of the message as it was, how often it was requeued, the id it had first, how many words it has.
local function opened(id, fields)
  local words, retries, first = {}, 0, id
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    if name == prefix .. 'retry_count' then
      -- Anybody may have written it: what is no small whole number counts as none, as the Go client has it.
      retries = #value < 10 and string.match(value, '^%d+$') and tonumber(value) or 0
    elseif name == prefix .. 'original_id' and (i > 1 or fields[3] ~= prefix .. 'only') then
      first = value
    else
      if name == prefix .. 'original_id' then first = value end -- of a replayed copy, which keeps it (replay.lua)
      words[#words + 1], words[#words + 2] = name, value
    end
  end
  local n = #words
  if n > WIDE then
    for i = 1, n do words[i] = #words[i] .. ':' .. words[i] end
    words = {prefix .. 'packed', table.concat(words)}
  elseif n == 2 and words[1] == prefix .. 'packed' then -- a copy of a wide one: count what is in it
    n = 0
    local at = 1
    while at <= #words[2] do
      local size = string.match(words[2], '^(%d+):', at)
      if not size then
        n = 2
        break
      end
      n, at = n + 1, at + #size + 1 + tonumber(size)
    end
  end
  return words, retries, first, n
end

-- Acks the original, and deletes it where the handler wants that and no other group could still want it.
local function finish(id)
  if delete == 'acked' then
    redis.call('XACKDEL', stream, group, 'ACKED', 'IDS', 1, id)
    return
  end
  redis.call('XACK', stream, group, id)
  if delete ~= 'sole' then return end
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    if info[2] ~= group and info[2] ~= waiting_group then return end
  end
  redis.call('XDEL', stream, id)
end

local function buried(row, words, retries, first, n)
  local append = {'XADD', dead_letters}
  if maxlen ~= '0' then append[3], append[4], append[5] = 'MAXLEN', '~', maxlen end
  append[#append + 1] = '*'
  for _, word in ipairs(words) do append[#append + 1] = word end
  for _, pair in ipairs({
    {'n', n}, {'original_id', first}, {'stream', stream}, {'group', group}, {'owner', row[2]},
    {'attempts', retries + row[4]}, {'first_ms', (string.gsub(first, '%-.*', ''))}, {'last_ms', now_ms},
    {'error', why}, {'reason', reason}, {'retry_count', retries},
  }) do
    append[#append + 1] = prefix .. pair[1]
    append[#append + 1] = type(pair[2]) == 'number' and string.format('%.0f', pair[2]) or pair[2]
  end
  return redis.call(unpack(append))
end

local function moved(row, lock)
  local id = row[1]
  local entry = redis.call('XRANGE', stream, id, id)[1]
  if not entry then
    redis.call('XACK', stream, group, id)
    return 'trimmed'
  end
  local words, retries, first, n = opened(id, entry[2])
  local next_retries = (way == 'release' or row[2] == RELEASE) and retries or retries + 1
  local word
  if way == 'bury' or next_retries > max_retries then
    if maxlen == 'off' then return 'kept' end
    word = 'buried ' .. buried(row, words, retries, first, n)
  else
    words[#words + 1], words[#words + 2] = prefix .. 'retry_count', string.format('%.0f', next_retries)
    words[#words + 1], words[#words + 2] = prefix .. 'original_id', first
    word = 'requeued ' .. redis.call('XADD', stream, '*', unpack(words))
  end
  finish(id)
  if owner ~= '' then redis.call('DEL', lock) end
  return word
end

-- changes nothing; as the first write it is allowed under maxmemory and lets the rest through
redis.call('XACK', stream, group, '0-0')
local answer = {now_ms}
for i = 13, #ARGV, 2 do
  local lock, word = KEYS[3 + (i - 13) / 2], nil
  local row = redis.call('XPENDING', stream, group, ARGV[i], ARGV[i], 1)[1]
  if not row then
    word = 'gone'
  elseif owner ~= '' and (row[2] ~= owner or row[4] ~= tonumber(ARGV[i + 1])) then
    word = 'taken ' .. row[2] .. ' ' .. string.format('%.0f', row[4])
  elseif owner == '' and row[2] ~= RETRY and row[2] ~= RELEASE and row[3] >= 0 and row[3] < min_idle_ms then
    word = 'fresh'
  elseif owner == '' and redis.call('EXISTS', lock) == 1 then
    word = 'alive'
  else
    word = moved(row, lock)
  end
  answer[#answer + 1] = word
end
return answer
