-- ensure_group: makes a group, and its stream, if they are not there.
-- KEYS 1 stream · ARGV 1 group 2 where it starts: an id, 0 or $
-- Answers "there" or "made".
-- Safe to repeat: the second time it is "there". One XGROUP CREATE, so there is no half-way.
local stream, group, start = KEYS[1], ARGV[1], ARGV[2]

if redis.call('EXISTS', stream) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    if info[2] == group then return 'there' end
  end
end
redis.call('XACK', stream, group, '0-0') -- changes nothing; under maxmemory it lets XGROUP through
redis.call('XGROUP', 'CREATE', stream, group, start, 'MKSTREAM')
return 'made'
