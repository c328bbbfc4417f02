-- announce: names a data stream, once. While a name is not finished, a second announce of it adds nothing.
-- KEYS 1 announcement stream 2 names hash · ARGV 1 name 2 info: bytes 3 field of the name 4 field of the info
-- Answers {id, 1 new | 0 known}.
-- Safe to repeat: the second time it is known. Appended before it is noted: stopped between, it may be announced twice,
--   and the older of the two ends by itself (take.lua: "newer").
local stream, names, name = KEYS[1], KEYS[2], ARGV[1]

-- Without the hash one name could have two assignments and two owners, robbing each other in the data's slot for ever.
local known = redis.call('HGET', names, name)
if known and redis.call('XRANGE', stream, known, known)[1] then return {known, 0} end
local id = redis.call('XADD', stream, '*', ARGV[3], name, ARGV[4], ARGV[2])
redis.call('HSET', names, name, id)
return {id, 1}
