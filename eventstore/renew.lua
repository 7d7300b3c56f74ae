-- renew: move the lease ends of up to 64 actors of a partition that are still this node's.
--
-- KEYS    due, then the heads of each actor
-- ARGV    node, lease in ms, then for each actor: id, epoch
-- Returns {Redis time, then for each actor: 0 if it is no longer this node's, or 1 and its heads in the order of
--          FIELDS}: an actor is this node's while owner and epoch are as they were, even if its lease has lapsed.

local call, tonumber = redis.call, tonumber
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local node, ends = ARGV[1], now + ARGV[2]
local out, n = {now}, 1
for i = 2, #KEYS do
  local h = call('HMGET', KEYS[i], 'l', 'w', 'wb', 'lo', 't', 'e', 'o', 'u', 'x', 'd')
  if h[7] == node and tonumber(h[6]) == tonumber(ARGV[2 * i]) then
    call('HSET', KEYS[i], 'u', ends)
    call('ZADD', KEYS[1], ends, ARGV[2 * i - 1] .. '|lease')
    out[n + 1] = 1
    for f = 1, 10 do out[n + 1 + f] = h[f] or '' end
    out[n + 9] = ends
    n = n + 11
  else
    out[n + 1] = 0
    n = n + 1
  end
end
return out
