-- save: keep a snapshot, unless its actor is erased or its log is shorter than the snapshot says.
--
-- KEYS    heads, snapshot
-- ARGV    version, bytes
-- Returns 1 if it is kept
-- A script, because a snapshot that comes late must neither bring back what an erasure took away nor replace an epitaph.

local h = redis.call('HMGET', KEYS[1], 'l', 'd')
if h[2] == '1' or tonumber(h[1] or 0) < tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[2], ARGV[1] .. ':' .. ARGV[2])
return 1
