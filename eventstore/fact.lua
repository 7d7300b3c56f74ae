-- fact: one event without items in the log of an actor whose owner asks under its epoch.
-- Where anything at all speaks against it, nothing is written and `append` is asked, which knows why.
--
-- KEYS    heads, log
-- ARGV    epoch, exact head, id of the entry, command id, PUBLISH or SPUBLISH, channel, head afterwards, event
-- Returns nil, or Redis time
--
-- Fields, entries and messages are those of append.lua.

local call, args = redis.call, ARGV
local h = call('HMGET', KEYS[1], 'l', 'e', 'x', 'w', 't')
if h[1] ~= args[2] or h[2] ~= args[1] or h[3] ~= '0' then return nil end
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if not call('XADD', KEYS[2], 'NOMKSTREAM', args[3], 'e', args[8], 'w', h[4], 'c', args[4]) then return nil end
call('HSET', KEYS[1], 'l', args[7], 't', math.max(now, h[5]))
call(args[5], args[6], h[4] + 1 .. '|' .. h[4] .. '|0|0\n')
return now
