-- delta: items of the feed of an actor whose owner asks under its epoch; nearly all appends are this.
-- Where anything at all speaks against it, nothing is written and `append` is asked, which knows why.
--
-- KEYS    heads, feed
-- ARGV    epoch, exact head, id of the first entry, command id, PUBLISH or SPUBLISH, channel, head afterwards,
--         first line of the message, 1 if the items travel in it, then the items
-- Returns nil, or the bytes of the feed; neither time nor other heads, because each costs as much as a write
--
-- Fields, entries and messages are those of append.lua.

local call, args = redis.call, ARGV
local h = call('HMGET', KEYS[1], 'w', 'e', 'x', 'wb')
if h[1] ~= args[2] or h[2] ~= args[1] or h[3] ~= '0' then return nil end
local item = args[10]
if not call('XADD', KEYS[2], 'NOMKSTREAM', args[3], 'i', item, 'c', args[4]) then return nil end
local bytes, said = #item, #item .. ':' .. item
for n = 11, #args do
  item = args[n]
  call('XADD', KEYS[2], args[2] + n - 9 .. '-0', 'i', item)
  bytes, said = bytes + #item, said .. #item .. ':' .. item
end
call('HSET', KEYS[1], 'w', args[7], 'wb', h[4] + bytes)
call(args[5], args[6], args[9] == '1' and args[8] .. said or args[8])
return h[4] + bytes
