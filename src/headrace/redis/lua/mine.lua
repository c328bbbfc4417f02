-- mine: gives an owner, with body and unchanged count, what the server says it holds and it does not know.
-- KEYS 1 stream · ARGV 1 group 2 owner 3 limit 4.. ids it knows
-- Answers {{{id, fields, count}, ..}, {trimmed ids}}. Idle clocks of what it gives are reset.
-- Safe to repeat. For after a read whose answer was cut: else those wait a lease and burn an attempt nobody saw.
local stream, group, owner, limit = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local PAGE = 500

-- a count in full: it has 63 bits (XNACK FATAL sets them all), Lua's numbers 53
local function digits(count)
  return count < 2 ^ 63 and string.format('%.0f', count) or '9223372036854775807'
end

local known = {}
for i = 4, #ARGV do known[ARGV[i]] = true end

local found, trimmed, start = {}, {}, '-'
repeat
  local rows = redis.call('XPENDING', stream, group, start, '+', PAGE, owner)
  for _, row in ipairs(rows) do
    local id = row[1]
    start = '(' .. id
    if not known[id] and #found < limit then
      local count = digits(row[4])
      local entry = redis.call('XCLAIM', stream, group, owner, 0, id, 'RETRYCOUNT', count)[1]
      if entry then
        found[#found + 1] = {id, entry[2], count}
      else
        redis.call('XACK', stream, group, id)
        trimmed[#trimmed + 1] = id
      end
    end
  end
until #rows < PAGE or #found >= limit
return {found, trimmed}
