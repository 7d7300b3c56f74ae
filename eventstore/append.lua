-- append: write events and items of one or more actors of a partition, all or nothing.
--
-- KEYS    for each part: heads, log, feed
--         and, where MORE or a CHANGE is not empty: due, outbox, then for each part its snapshot, then the lists in their order
-- ARGV    1 command id   2 PUBLISH or SPUBLISH   3 hash tag   4 MORE: empty, or
--         <parts>,<not before>,<not after>,<due members>,<list members>,<outbox entries>,<1 if work is set>
--         for each part: actor, log head or empty, feed head or empty for *next*, epoch or empty,
--           CHANGE: empty, or <lease ms>,<1 if it ends>,<1 if it is erased, 2 if its feed is trimmed>,<- or =owner>
--           number of events, number of items, for each event: items before its end, bytes; for each item: bytes;
--           of a part that is erased, and of no other: its epitaph, or empty
--         for each due member: <actor>|<reason>, time or empty to clear
--         for each list member: member, score or empty to clear
--         for each outbox entry: bytes
-- Returns {code, Redis time, then for each part: first item number or 0, heads in the order of FIELDS}
--         code: 0 written, 1 written before, 2 conflict (of a trim too: its actor has not ended), 3 fenced, 4 ended,
--         5 lost, 6 outside the window;
--         for 5 the number of the part follows the time, for 6 nothing does
--
-- Log entry: e bytes, w feed head after it, c command id (first of an append). Feed entry: i bytes, c likewise.
-- Heads: l log, w feed, wb its bytes, lo oldest kept, t last time, e epoch, o owner, u lease end, x ended, d erased;
-- k is the command of the last change of owner, end, erasure or trim, by which a repeat of it is seen.
-- Heads that exist have all fields but k. The snapshot of an erased actor is <log head>:<the first epitaph it was given>.
-- All checks come before the first write, streams before heads: a script that fails is not rolled back.

local call, tonumber, match = redis.call, tonumber, string.match
local command, verb, tag, more = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local count, from, to, dues, lists, outs, work = 1, 0, 0, 0, 0, 0, '0'
if more ~= '' then
  count, from, to, dues, lists, outs, work = match(more, '(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d)')
  count, from, to, dues, lists, outs =
    tonumber(count), tonumber(from), tonumber(to), tonumber(dues), tonumber(lists), tonumber(outs)
end
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- the parts as asked, and the heads as they are
local parts, at = {}, 5
for i = 1, count do
  local key = 3 * i
  local h = call('HMGET', KEYS[key - 2], 'l', 'w', 'wb', 'lo', 't', 'e', 'o', 'u', 'x', 'd', 'k')
  local part = {
    heads = KEYS[key - 2], log = KEYS[key - 1], feed = KEYS[key], actor = ARGV[at],
    want_l = tonumber(ARGV[at + 1]), want_w = tonumber(ARGV[at + 2]), epoch = tonumber(ARGV[at + 3]),
    change = ARGV[at + 4], events = tonumber(ARGV[at + 5]), items = tonumber(ARGV[at + 6]), at = at + 7,
    l = tonumber(h[1]) or 0, w = tonumber(h[2]) or 0, wb = tonumber(h[3]) or 0, lo = tonumber(h[4]) or 1,
    t = tonumber(h[5]) or 0, e = tonumber(h[6]) or 0, o = h[7] or '', u = tonumber(h[8]) or 0,
    x = tonumber(h[9]) or 0, d = tonumber(h[10]) or 0, k = h[11], first = 0, new = not h[1],
  }
  if part.change ~= '' then
    local lease, ends, goes, owner = match(part.change, '(%d+),(%d),(%d),(.*)')
    part.lease, part.ends, part.erases, part.trims = tonumber(lease), ends == '1', goes == '1', goes == '2'
    part.owner = match(owner, '^=(.*)')
  end
  at = part.at + 2 * part.events + part.items
  if part.erases then part.epitaph, at = ARGV[at], at + 1 end
  parts[i] = part
end

local function answer(code)
  local out, n = {code, now}, 2
  for i = 1, count do
    local p = parts[i]
    out[n + 1], out[n + 2], out[n + 3], out[n + 4], out[n + 5] = p.first, p.l, p.w, p.wb, p.lo
    out[n + 6], out[n + 7], out[n + 8], out[n + 9], out[n + 10], out[n + 11] = p.t, p.e, p.o, p.u, p.x, p.d
    n = n + 11
  end
  return out
end

-- own write: the entry right after the expected head carries the command id at a fixed place
local function entry(key, number)
  local found = call('XRANGE', key, number .. '-0', number .. '-0')[1]
  return found and found[2] or {}
end
local function written(p)
  if p.events > 0 and p.l > p.want_l and entry(p.log, p.want_l + 1)[6] == command then return true end
  if p.items > 0 and p.want_w and p.w > p.want_w and entry(p.feed, p.want_w + 1)[4] == command then return true end
  return p.change ~= '' and p.k == command
end
local function first_of(p)
  if p.items == 0 then return 0 end
  if p.want_w then return p.want_w + 1 end
  local head = entry(p.log, p.want_l + 1)[4]
  return head and head - ARGV[p.at] + 1 or 0
end
for i = 1, count do
  if written(parts[i]) then
    for j = 1, count do parts[j].first = first_of(parts[j]) end
    return answer(1)
  end
end
for i = 1, count do
  local p = parts[i]
  if p.epoch and p.epoch ~= p.e then return answer(3) end
end
for i = 1, count do
  if parts[i].x == 1 and not (parts[i].erases or parts[i].trims) then return answer(4) end
end
for i = 1, count do
  local p = parts[i]
  if (p.want_l and p.want_l ~= p.l) or (p.want_w and p.want_w ~= p.w) then return answer(2) end
  if p.trims and p.x == 0 then return answer(2) end
end

-- a stream that a part names or writes exists exactly if its head is not below the oldest it keeps
-- (where one stream is all there is to write, its first XADD makes sure of it)
local plain = more == '' and parts[1].change == ''
local function absent(key, head, oldest)
  return (call('EXISTS', key) == 1) ~= (head >= oldest)
end
for i = 1, count do
  local p = parts[i]
  local log, feed = p.want_l, p.want_w or p.items > 0
  if plain and p.w > 0 and not log and p.items > 0 then
    p.sure = p.feed
  elseif plain and p.l > 0 and not feed and p.events > 0 then
    p.sure = p.log
  elseif log and feed and p.l > 0 and p.w >= p.lo then
    if call('EXISTS', p.log, p.feed) ~= 2 and p.d == 0 then return {5, now, i} end
  elseif p.d == 0 and ((log and absent(p.log, p.l, 1)) or (feed and absent(p.feed, p.w, p.lo))) then
    return {5, now, i}
  end
end
for i = 1, count do
  local p = parts[i]
  if p.owner and p.owner ~= '' and p.o ~= '' and p.u > now then return answer(3) end
end
if now < from or (to > 0 and now >= to) then return {6, now} end


-- from here on it is written; streams first
for i = 1, count do
  local p, src = parts[i], parts[i].at
  for n = 1, p.events do
    local id, head = p.l + n .. '-0', p.w + ARGV[src]
    if p.sure then
      if not call('XADD', p.log, 'NOMKSTREAM', id, 'e', ARGV[src + 1], 'w', head, 'c', command) then
        return {5, now, i}
      end
      p.sure = nil
    elseif n == 1 then
      call('XADD', p.log, id, 'e', ARGV[src + 1], 'w', head, 'c', command)
    else
      call('XADD', p.log, id, 'e', ARGV[src + 1], 'w', head)
    end
    src = src + 2
  end
  for n = 1, p.items do
    local id, item = p.w + n .. '-0', ARGV[src]
    if p.sure then
      if not call('XADD', p.feed, 'NOMKSTREAM', id, 'i', item, 'c', command) then return {5, now, i} end
      p.sure = nil
    elseif n == 1 then
      call('XADD', p.feed, id, 'i', item, 'c', command)
    else
      call('XADD', p.feed, id, 'i', item)
    end
    p.wb = p.wb + #item
    src = src + 1
  end
end

-- heads; then rings to the owner that was, and the items to all who follow
for i = 1, count do
  local p = parts[i]
  local was, ended = p.o, p.x
  if p.items > 0 then p.first = p.w + 1 end
  p.l, p.w = p.l + p.events, p.w + p.items
  if p.events > 0 and now > p.t then p.t = now end
  if p.change ~= '' then
    local ends = (p.ends or p.erases) and p.x == 0
    if p.owner or ends then p.o, p.u = '', 0 end
    if p.owner and p.owner ~= '' and not p.ends then
      p.o, p.u, p.e = p.owner, now + p.lease, p.e + 1
    end
    if ends then p.x, p.e = 1, p.e + 1 end
    local due, lease = KEYS[3 * count + 1], p.actor .. '|lease'
    if p.erases then
      local snapshot = KEYS[3 * count + 2 + i]
      if p.d == 0 then call('UNLINK', p.log, p.feed, snapshot) end
      if p.epitaph ~= '' then call('SET', snapshot, p.l .. ':' .. p.epitaph, 'NX') end
      p.d, p.lo = 1, p.w + 1
    elseif p.trims then
      p.lo = p.w + 1
      call('UNLINK', p.feed)
    end
    call('HSET', p.heads, 'l', p.l, 'w', p.w, 'wb', p.wb, 'lo', p.lo, 't', p.t, 'e', p.e, 'o', p.o, 'u', p.u,
      'x', p.x, 'd', p.d, 'k', command)
    if p.u > 0 then call('ZADD', due, p.u, lease) else call('ZREM', due, lease) end
  elseif p.new and (p.events > 0 or p.items > 0) then
    call('HSET', p.heads, 'l', p.l, 'w', p.w, 'wb', p.wb, 'lo', p.lo, 't', p.t, 'e', p.e, 'o', p.o, 'u', p.u,
      'x', p.x, 'd', p.d)
  elseif p.events > 0 and p.items > 0 then
    call('HSET', p.heads, 'l', p.l, 't', p.t, 'w', p.w, 'wb', p.wb)
  elseif p.events > 0 then
    call('HSET', p.heads, 'l', p.l, 't', p.t)
  elseif p.items > 0 then
    call('HSET', p.heads, 'w', p.w, 'wb', p.wb)
  end
  if was ~= '' and (not p.epoch or (p.owner and p.owner ~= '')) then
    call(verb, tag .. ':n:' .. was, p.actor)
  end
  if p.items > 0 or p.events > 0 or p.x ~= ended then
    -- <first>|<head>|<ended>|<n>, a line end, then each item as <length>:<bytes>; n is 0 for many bytes or none
    local src, bytes = p.at + 2 * p.events, 0
    for n = 0, p.items - 1 do bytes = bytes + #ARGV[src + n] end
    local body
    if p.items == 1 and bytes <= 8192 then
      body = p.w .. '|' .. p.w .. '|' .. p.x .. '|1\n' .. bytes .. ':' .. ARGV[src]
    elseif p.items > 0 and bytes <= 8192 then
      local said = {p.first .. '|' .. p.w .. '|' .. p.x .. '|' .. p.items .. '\n'}
      for n = 0, p.items - 1 do said[n + 2] = #ARGV[src + n] .. ':' .. ARGV[src + n] end
      body = table.concat(said)
    else
      body = p.w + 1 - p.items .. '|' .. p.w .. '|' .. p.x .. '|0\n'
    end
    call(verb, tag .. ':c:' .. p.actor, body)
  end
end

if more ~= '' then
  local due, key = KEYS[3 * count + 1], 4 * count + 3
  for _ = 1, dues do
    if ARGV[at + 1] == '' then call('ZREM', due, ARGV[at]) else call('ZADD', due, ARGV[at + 1], ARGV[at]) end
    at = at + 2
  end
  for _ = 1, lists do
    if ARGV[at + 1] == '' then call('ZREM', KEYS[key], ARGV[at]) else call('ZADD', KEYS[key], ARGV[at + 1], ARGV[at]) end
    at, key = at + 2, key + 1
  end
  for _ = 1, outs do
    call('XADD', KEYS[3 * count + 2], '*', 'd', ARGV[at])
    at = at + 1
  end
  if work == '1' then call(verb, tag .. ':work', '') end
end
return answer(0)
