-- done: acks deliveries and leaves a completion marker for each key, each only if (owner, count) still holds.
-- KEYS 1 stream 2.. one marker a delivery · ARGV 1 group 2 owner 3 window ms 4 delete: no, acked,
--   sole 5 waiting group 6.. id, count, result
-- Answers a word each: "ok", "duplicate" (the key was done before: acked, first result kept), "gone", "taken ...".
-- Safe to repeat: the second time they are "gone". Marker before ack: a done key is never without its marker.
local stream, group, owner, window_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local delete, waiting_group = ARGV[4], ARGV[5]

local words, done = {}, {}
for i = 6, #ARGV, 3 do
  local id, count, result, word = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], 'ok'
  local row = redis.call('XPENDING', stream, group, id, id, 1)[1]
  if not row then
    word = 'gone'
  elseif row[2] ~= owner or row[4] ~= count then
    word = 'taken ' .. row[2] .. ' ' .. string.format('%.0f', row[4])
  else
    -- the owner's own XCLAIM is allowed under maxmemory, and as the first write it lets SET through
    if #done == 0 then redis.call('XCLAIM', stream, group, owner, 0, id, 'JUSTID') end
    local marker = KEYS[#words + 2]
    if not redis.call('SET', marker, result, 'NX', 'PX', window_ms) then word = 'duplicate' end
    done[#done + 1] = id
  end
  words[#words + 1] = word
end
if #done == 0 then return words end

if delete == 'acked' then
  -- the only form of XACKDEL that leaves what another group has not finished
  redis.call('XACKDEL', stream, group, 'ACKED', 'IDS', #done, unpack(done))
else
  redis.call('XACK', stream, group, unpack(done))
end
if delete == 'sole' then
  -- only if no group but this one and its waiting group could still want it, and it does not wait there
  local others, waits = 0, 0
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    if info[2] == waiting_group then
      waits = redis.call('XPENDING', stream, waiting_group)[1]
    elseif info[2] ~= group then
      others = others + 1
    end
  end
  for _, done_id in ipairs(others == 0 and done or {}) do
    if waits == 0 or #redis.call('XPENDING', stream, waiting_group, done_id, done_id, 1) == 0 then
      redis.call('XDEL', stream, done_id)
    end
  end
end
return words
