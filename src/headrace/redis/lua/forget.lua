-- forget: deletes a dead letter, and with the last word about a buried announcement frees its name: it may be announced
--   again, only if the name still stands for it and no group holds it, waits for it or has yet to read it.
-- KEYS 1 announcement stream 2 names hash 3 dead-letter stream · ARGV 1 id of the dead letter 2 name 3 original id
-- Answers 1 or 0: how many dead letters were deleted.
-- Safe to repeat: the second time it is 0. The name is free before the dead letter is gone: stopped between, the
--   dead letter is left to be purged again.
local stream, names, dead_letters, dead, name, id = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3]

-- ids are decimal strings of up to 20 digits, which Lua's numbers cannot hold
local function below(a, b) return #a < #b or (#a == #b and a < b) end
local function older(a, b)
  local a_ms, a_seq = string.match(a, '(%d+)-(%d+)')
  local b_ms, b_seq = string.match(b, '(%d+)-(%d+)')
  return below(a_ms, b_ms) or (a_ms == b_ms and below(a_seq, b_seq))
end

-- Anybody who may add to the dead letters can write one about an announcement that is alive.
local function wanted()
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local about = {}
    for i = 1, #info, 2 do about[info[i]] = info[i + 1] end
    if older(about['last-delivered-id'], id) then return true end
    if redis.call('XPENDING', stream, about.name, id, id, 1)[1] then return true end
  end
  return false
end

if not redis.call('XRANGE', dead_letters, dead, dead)[1] then return 0 end
if redis.call('EXISTS', names) == 1 and redis.call('HGET', names, name) == id then
  if redis.call('EXISTS', stream) == 0 or not wanted() then
    redis.call('HDEL', names, name)
    redis.call('XDEL', stream, id)
  end
end
return redis.call('XDEL', dead_letters, dead)
