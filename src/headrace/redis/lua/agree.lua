-- agree: says into how many partitions a stream is cut, unless somebody has said so before.
-- KEYS 1 where the number is kept · ARGV 1 the number
-- Answers the number that holds from now on.
-- Safe to repeat. It writes only where nothing is written yet: SET NX is refused by a full server although it would
--   change nothing, and nobody could start there.
local kept, number = KEYS[1], ARGV[1]

local known = redis.call('GET', kept)
if known then return known end
redis.call('SET', kept, number)
return number
