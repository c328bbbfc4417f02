-- decide: chooses, once for ever, which manifest of lists is a batch; whoever comes later hears the choice.
-- KEYS 1 decision (hash of a query: done, receipt, open, manifest, forsaken) · ARGV 1 batch 2 my manifest 3 "strict":
--   batches follow each other without a gap 4 seconds until the decision expires, 0: never
-- Answers {"chosen", manifest} (publish that one, mine or another's), {"done"} (published before), {"open", batch}
--   (another batch was not finished), {"gap", last batch done or ""} or {"forsaken", ""} (my driver gave it up).
-- Safe to repeat: the second time my own manifest is the chosen one. One HSET, so there is no half-way.
local decision, batch, manifest, strict, expire_s = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]

local known = redis.call('HMGET', decision, 'done', 'open', 'manifest', 'forsaken')
local done, open = tonumber(known[1] or nil), tonumber(known[2] or nil)
if done and batch <= done then return {'done'} end
if open and open ~= batch then return {'open', string.format('%.0f', open)} end
if open then return {'chosen', known[3]} end
if known[4] and known[4] == redis.sha1hex(manifest) then return {'forsaken', ''} end
if strict == 'strict' and (done or -1) ~= batch - 1 then return {'gap', known[1] or ''} end

redis.call('HSET', decision, 'open', string.format('%.0f', batch), 'manifest', manifest)
if expire_s == '0' then
  redis.call('PERSIST', decision)
else
  redis.call('EXPIRE', decision, expire_s)
end
return {'chosen', manifest}
