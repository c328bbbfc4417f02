-- forsake: gives a manifest up, unless it was chosen: from now on decide refuses it, so its lists may be dropped.
-- KEYS 1 decision · ARGV 1 batch 2 my manifest 3 seconds to remember a query that has done nothing else so far
-- Answers the manifest that was chosen for this batch and is not finished, whose lists must stay; or "".
-- Safe to repeat. A decide may still be on its way (its driver was interrupted, its server slow): it comes before this
--   and is answered here, or after it and is refused. Only the last manifest given up is remembered.
local decision, batch, manifest, expire_s = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]

local known = redis.call('HMGET', decision, 'done', 'open', 'manifest')
if tonumber(known[2] or nil) == batch then return known[3] end
if (tonumber(known[1] or nil) or -1) >= batch then return '' end

redis.call('HDEL', decision, 'forsaken') -- allowed under maxmemory, and as the first write it lets HSET through
redis.call('HSET', decision, 'forsaken', redis.sha1hex(manifest))
if not known[1] and not known[2] then redis.call('EXPIRE', decision, expire_s) end
return ''
