-- sweep: take due members whose time has come, and move them so that no other sweep takes them at once.
--
-- KEYS    due
-- ARGV    how many at most; 1 if whoever sweeps may judge whether a lease has lapsed
-- Returns {Redis time, when to come again (0: nothing is due), then for each member taken: <actor>|<reason>, when it was due}
--         Each is moved 2 s ahead. Leases, `client` among them, stay where they are for whoever may judge them; who may not
--         looks past eight times as many members as it may take, and comes again in a quarter second.
--         `work` under a living lease is not taken but moved to that lease's end.
--         Touches nothing but KEYS[1], so a half-moved slot cannot break it.

local call = redis.call
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local judging, left = ARGV[2] == '1', tonumber(ARGV[1])
local past = call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, judging and left or left * 8)
local out = {now, 0}

local function judged(member)
  return string.sub(member, -6) == '|lease' or string.sub(member, -7) == '|client'
end

for i = 1, #past, 2 do
  local member, lease = past[i], 0
  if left > 0 and (judging or not judged(member)) then
    local actor = string.match(member, '^(.*)|work$')
    if actor then lease = tonumber(call('ZSCORE', KEYS[1], actor .. '|lease') or 0) end
    if lease > now then
      call('ZADD', KEYS[1], lease, member)
    else
      call('ZADD', KEYS[1], now + 2000, member)
      out[#out + 1], out[#out + 2] = member, past[i + 1]
    end
    left = left - 1
  end
end
local first = call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if first[2] then out[2] = math.max(tonumber(first[2]), judging and 0 or now + 250) end
return out
