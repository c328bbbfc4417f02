-- publish: appends the rows of one blob to their stream: the first of a list, which it then removes and counts.
-- KEYS 1 target stream, and 2 list 3 counter · ARGV 1 "", MAXLEN or MINID 2 "~" or "=" 3 threshold, and 4 the blob
--   itself where there is no list (at least once)
-- Answers {blobs published of this list so far, blobs left}; {rows, 0} where there is no list.
-- Safe to repeat with a list: every call takes the next blob, and the counter says how many there were. Append first,
--   remove last, all in one script: a blob is in the stream and counted, or still in the list.
--
-- A blob is msgpack: [names, rows, column, column, ...] with one value or nil for each row in a column;
-- or, where names is empty, [names, rows, row, row, ...] with names and values in turn in a row.
local target, list, counter = KEYS[1], KEYS[2], KEYS[3]
local trim, about, threshold, blob = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if list then
  blob = redis.call('LINDEX', list, 0)
  if not blob then return {tonumber(redis.call('GET', counter) or 0), 0} end
  -- What follows the first append must not be refused: rows that are in the stream and whose blob stays in the list would
  -- be appended again. So both rights are asked for, on keys of the other type, where neither does anything. INCR goes
  -- first: a server without memory refuses it, and would let anything through behind an LPOP.
  for _, probe in ipairs({{'INCR', list}, {'LPOP', counter}}) do
    local answer = redis.pcall(probe[1], probe[2])
    if type(answer) == 'table' and answer.err and not string.find(answer.err, 'WRONGTYPE', 1, true) then
      return answer
    end
  end
end
local parts = cmsgpack.unpack(blob)
local names, rows = parts[1], parts[2]
local head = {'XADD', target}
if trim ~= '' then head = {'XADD', target, trim, about, threshold} end
head[#head + 1] = '*'
local start = #head

-- One table of words for all rows: making one for each costs a third of the time.
local call, words, width = redis.call, {unpack(head)}, #names
if width == 0 then
  for row = 1, rows do
    local entry = parts[2 + row]
    for i = 1, #entry do words[start + i] = entry[i] end
    call(unpack(words, 1, start + #entry))
  end
else
  for row = 1, rows do
    local n = start
    for column = 1, width do
      local value = parts[2 + column][row]
      if value ~= nil then
        words[n + 1], words[n + 2] = names[column], value
        n = n + 2
      end
    end
    call(unpack(words, 1, n))
  end
end

if not list then return {rows, 0} end
redis.call('LPOP', list)
local published = redis.call('INCR', counter)
return {published, redis.call('LLEN', list)}
