-- add: appends a message once per idempotency key. While the key's marker lives, nothing is appended.
-- KEYS 1 stream 2 marker of the key · ARGV 1 window ms 2 stream MAXLEN or 0 3.. field, value, ...
-- Answers {id, 1} for a new message, {id of the first one, 0} for a known key.
-- Safe to repeat: that is what it is for. Appends first; without the marker a repeated call would add again.
local stream, marker, window_ms, maxlen = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local first = redis.call('GET', marker)
if first then return {first, 0} end

local append = {'XADD', stream}
if maxlen ~= '0' then
  append[3], append[4], append[5] = 'MAXLEN', '~', maxlen
end
append[#append + 1] = '*'
for i = 3, #ARGV do append[#append + 1] = ARGV[i] end

local id = redis.call(unpack(append))
redis.call('SET', marker, id, 'PX', window_ms)
return {id, 1}
