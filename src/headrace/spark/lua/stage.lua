-- stage: puts blobs of rows at the end of a task's private list, if the list is as long as its writer believes.
-- KEYS 1 list · ARGV 1 blobs in the list before this 2 seconds until it expires 3.. blobs
-- Answers the length of the list, or -1 - length where it is another than the writer believes: give up.
-- Safe to repeat: blobs that are there already are not put twice. The list expires from its first push on.
local list, before, expire_s, given = KEYS[1], tonumber(ARGV[1]), ARGV[2], #ARGV - 2

local length = redis.call('LLEN', list)
if length == before + given then return length end
if length ~= before then return -1 - length end
for i = 3, #ARGV do redis.call('RPUSH', list, ARGV[i]) end
redis.call('EXPIRE', list, expire_s)
return before + given
