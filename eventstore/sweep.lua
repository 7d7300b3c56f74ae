-- sweep: take due members whose time has come, and move them so that no other sweep takes them at once.
--
-- KEYS    due
-- ARGV    how many at most; 1 if whoever sweeps may judge whether a lease has lapsed
-- Returns {Redis time, when the next is due (0: nothing is), then for each member taken: <actor>|<reason>, when it was due}
--         Each is moved 2 s ahead; a lease that may not be judged, `client` among them, a quarter second.
--         `work` under a living lease is not taken but moved to that lease's end.
--         Touches nothing but KEYS[1], so a half-moved slot cannot break it.

local call = redis.call
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local past = call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local out = {now, 0}
for i = 1, #past, 2 do
  local member, lease = past[i], 0
  local actor = string.match(member, '^(.*)|work$')
  if actor then lease = tonumber(call('ZSCORE', KEYS[1], actor .. '|lease') or 0) end
  if lease > now then
    call('ZADD', KEYS[1], lease, member)
  else
    local soon = ARGV[2] == '0' and (string.sub(member, -6) == '|lease' or string.sub(member, -7) == '|client')
    call('ZADD', KEYS[1], now + (soon and 250 or 2000), member)
    out[#out + 1], out[#out + 2] = member, past[i + 1]
  end
end
local first = call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if first[2] then out[2] = tonumber(first[2]) end
return out
