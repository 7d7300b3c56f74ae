-- The ledger: the permits of one pool over all nodes, its waiting line and its queue, in one atomic step.
--
-- KEYS  1 held   zset    holder -> Redis time by which it must have begun; 0 once begun
--       2 by     hash    "total", "s|<subject>", "a|<account>" and "n|<node>" -> weight of the permits held, changed
--                        only together with `held`;
--                        "h|<holder>" -> its record, see `record` and `held_record`; a queued one begins with "q"
--                        and its lane;
--                        "place" -> the last number given to a place or a turn;
--                        "seen" -> time of the last call that met a line; "awake" -> see tick;
--                        "audited" -> the history on which it was last held against the runs; not this script's
--       3 line   zset    "<subject>|<account>|<place>|<holder>", all scored 0, so the order is that of bytes
--       4 turn   zset    subject with waiting work -> its turn; the lowest is next
--       5 asked  zset    waiting holder -> what "awake" was when it last asked
--       6 gone   string  until when a `begun` of this holder counts as late: it gave its permit back
--       7 queue  zset    as `line`, for what any node of its lane may take up, with "<lane>:" before the account;
--                        its places are the times it was queued at
--       8 qturn  zset    as `turn`, for subjects with queued work
-- ARGV  1 verb: take, begun, give, enlist or dispatch    2 holder (dispatch: or empty)    3 publish command
--       4 channel of a node, without the node    5 channel where all nodes hear of room
--       all but begun: 6 total (0 is no bound, as for every cap)
--       take and enlist: 7 begin within ms    8 per subject    9 per account    10 per node
--             11 weight    12 subject    13 account (or empty)    14 node
--       take: 15 queue total (0 is no line)    16 queue per subject    enlist: 15 queued at ms    16 lane
--       begun: 6 weight    7 subject    8 account    9 node
--       dispatch: 7 per node    8 most    9 node    10 lanes, each after and before a "|"
-- Names of lanes are lower-case letters, or nothing.
-- Names of subjects and accounts come quoted: none contains "|".
-- Answers {granted | queued | busy | full | done, begin by, Redis time}; dispatch goes on with holder, begin by, ...
-- The only check that can refuse is the first.

local HELD, BY, LINE, TURN, ASKED, GONE, QUEUE, QTURN =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local REAPED_MAX = 64 -- lapsed permits, and silent waiters, taken off by one call
local SUBJECTS_MAX = 32 -- looks at a subject by one call, in each of line and queue
local ACCOUNTS_MAX = 256 -- accounts of one subject that are looked at; a host is configured with far fewer
local GONE_MS = 30000
local SILENT_MS, STEP_MS = 15000, 3000
local RECORD = "^(%l*)(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|([^|]*)|([^|]*)|(.*)$"
local unpack = unpack or table.unpack

local verb, holder = ARGV[1], ARGV[2]
if #KEYS ~= 8 or #ARGV ~= ({ take = 16, begun = 9, give = 6, enlist = 16, dispatch = 10 })[verb] then
  return redis.error_reply("ERR ledger: unknown verb, or a wrong number of keys or arguments")
end

local clock = redis.call("TIME")
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

local function text(number)
  return string.format("%.0f", number)
end

local function padded(number)
  return string.format("%016.0f", number)
end

local function answer(taken, begin_by)
  return { taken, text(begin_by), text(now) }
end

local begun_by = verb == "begun" and redis.call("ZSCORE", HELD, holder)
if begun_by then
  if tonumber(begun_by) ~= 0 then
    redis.call("ZADD", HELD, 0, holder)
  end
  local tail = "|" .. table.concat(ARGV, "|", 6) -- weight, subject, account and node, as `record` ends
  if string.sub(redis.call("HGET", BY, "h|" .. holder) or "", -#tail) == tail then
    return answer("done", 0)
  end
end

-- Mostly nobody waits and nothing is queued, and then nothing about them needs to be asked.
local listed = redis.call("EXISTS", LINE, QUEUE) > 0
local lined = listed and redis.call("EXISTS", LINE) > 0
local freed = false -- whether this call gave something back

local function below(count, cap)
  return cap == 0 or count < cap
end

local function next_place()
  return redis.call("HINCRBY", BY, "place", 1)
end

local function record(who)
  return table.concat({
    who.queued .. who.place, text(who.within), text(who.per_subject), text(who.per_account), text(who.per_node),
    text(who.weight), who.subject, who.account, who.node,
  }, "|")
end

-- The record of a holder whose permit is out: it has no place any more, and its caps were for waiting.
local NO_PLACE = "0|0|0|0|0|"

local function held_record(who)
  return NO_PLACE .. text(who.weight) .. "|" .. who.subject .. "|" .. who.account .. "|" .. who.node
end

local function read_held(name)
  local weight, subject, account, node =
    string.match(redis.call("HGET", BY, "h|" .. name) or "", "^(%d+)|([^|]*)|([^|]*)|(.*)$", #NO_PLACE + 1)
  return weight and { weight = tonumber(weight), subject = subject, account = account, node = node }
end

local function read(name)
  local queued, place, within, per_subject, per_account, per_node, weight, subject, account, node =
    string.match(redis.call("HGET", BY, "h|" .. name) or "", RECORD)
  return queued and {
    queued = queued, place = place, within = tonumber(within), per_subject = tonumber(per_subject),
    per_account = tonumber(per_account), per_node = tonumber(per_node), weight = tonumber(weight),
    subject = subject, account = account, node = node,
  }
end

-- Weights held in all, and by the subject, account and node of *who*; one more field of `by` comes along.
local function sums(who, field)
  return redis.call(
    "HMGET", BY, "total", "s|" .. who.subject, "a|" .. who.account, "n|" .. who.node, field or "total")
end

local function fits(kept, who, total, per_node, more)
  return (total == 0 or tonumber(kept[1] or 0) + more <= total)
    and (who.per_subject == 0 or tonumber(kept[2] or 0) + more <= who.per_subject)
    and (who.per_account == 0 or who.account == "" or tonumber(kept[3] or 0) + more <= who.per_account)
    and (per_node == 0 or tonumber(kept[4] or 0) + more <= per_node)
end

-- Counts the weight of *who* more (sign 1) or less (-1); its record goes with the last write, so there are two at most.
local function count(name, who, sign, kept)
  kept = kept or sums(who)
  local set, drop = {}, {}
  if sign > 0 then
    set = { "h|" .. name, held_record(who) }
  else
    drop = { "h|" .. name }
  end
  local function put(field, before)
    local left = tonumber(before or 0) + sign * who.weight
    if left > 0 then
      set[#set + 1], set[#set + 2] = field, text(left)
    else
      drop[#drop + 1] = field
    end
  end
  put("total", kept[1])
  put("s|" .. who.subject, kept[2])
  if who.account ~= "" then
    put("a|" .. who.account, kept[3])
  end
  put("n|" .. who.node, kept[4])
  if #set > 0 then
    redis.call("HSET", BY, unpack(set))
  end
  if #drop > 0 then
    redis.call("HDEL", BY, unpack(drop))
  end
end

-- Counts the permit of *name* on *node* with *weight* from now on.
local function recount(name, who, weight, node)
  count(name, who, -1)
  freed = freed or weight < who.weight
  who.weight, who.node = weight, node
  count(name, who, 1)
end

local function hold(name, who, begin_by, kept)
  redis.call("ZADD", HELD, text(begin_by), name)
  count(name, who, 1, kept)
end

local function release(name)
  if redis.call("ZREM", HELD, name) == 0 then
    return false
  end
  freed = true
  local who = read_held(name)
  if who then
    count(name, who, -1)
  end
  return true
end

local function waiting_of(line, subject)
  return redis.call("ZLEXCOUNT", line, "[" .. subject .. "|", "(" .. subject .. "}")
end

local function lane_of(who)
  return string.sub(who.queued, 2)
end

local function member(name, who)
  local lane = lane_of(who)
  return who.subject .. "|" .. (lane == "" and lane or lane .. ":") .. who.account .. "|" .. who.place .. "|" .. name
end

-- Takes *name* off the line or the queue, whichever it is in; whether its subject has more work there.
local function leave(name, who)
  local line, turn = LINE, TURN
  if who.queued ~= "" then
    line, turn = QUEUE, QTURN
  else
    redis.call("ZREM", ASKED, name)
  end
  redis.call("ZREM", line, member(name, who))
  if waiting_of(line, who.subject) > 0 then
    return true
  end
  redis.call("ZREM", turn, who.subject)
  return false
end

local function waits(name)
  return lined and redis.call("ZSCORE", ASKED, name)
end

-- Forgets *name*, which holds nothing, if it waits or is queued.
local function drop(name)
  local who = read(name)
  if who then
    leave(name, who)
    redis.call("HDEL", BY, "h|" .. name)
  end
end

-- Silence is counted in time during which the ledger was spoken to, at most STEP_MS a call: an outage costs nobody's place.
local function tick()
  local kept = redis.call("HMGET", BY, "seen", "awake")
  local awake = tonumber(kept[2] or 0) + math.max(0, math.min(now - tonumber(kept[1] or now), STEP_MS))
  redis.call("HSET", BY, "seen", text(now), "awake", text(awake))
  return awake
end

local function reap(awake)
  for _, name in ipairs(redis.call("ZRANGEBYSCORE", HELD, "(0", text(now), "LIMIT", 0, REAPED_MAX)) do
    release(name)
  end
  if lined then
    local silent = text(awake - SILENT_MS)
    for _, name in ipairs(redis.call("ZRANGEBYSCORE", ASKED, "-inf", silent, "LIMIT", 0, REAPED_MAX)) do
      drop(name)
    end
  end
end

local function give_back()
  if not release(holder) then
    drop(holder)
  end
  redis.call("SET", GONE, text(now + GONE_MS), "PX", GONE_MS)
end

if verb == "give" and not listed then -- the common case, before what is about lines is even defined
  give_back()
  reap()
  return answer("done", 0)
end

-- The time by which *name* must begin, if it holds a permit; a lapsed one, beyond what one call reaps, goes.
local function held_by(name)
  local begin_by = redis.call("ZSCORE", HELD, name)
  if begin_by and tonumber(begin_by) ~= 0 and tonumber(begin_by) <= now then
    release(name)
    return false
  end
  return begin_by
end

-- Whether *one* comes before *other* by bytes; `<` would go by the server's locale.
local function precedes(one, other)
  for at = 1, math.min(#one, #other) do
    local left, right = string.byte(one, at), string.byte(other, at)
    if left ~= right then
      return left < right
    end
  end
  return #one < #other
end

-- The earliest of *subject* in *line* that may have a permit: the heads of its lanes' and accounts' lines are compared.
local function first_of(line, subject, room_for)
  local best, best_name, best_kept
  local from, to = "[" .. subject .. "|", "(" .. subject .. "}"
  for _ = 1, ACCOUNTS_MAX do
    local found = redis.call("ZRANGEBYLEX", line, from, to, "LIMIT", 0, 1)[1]
    if not found then
      break
    end
    local account, name = string.match(found, "^[^|]*|([^|]*)|%d+|(.*)$")
    local who = read(name)
    local kept = room_for(who)
    if kept and (not best or precedes(who.place .. name, best.place .. best_name)) then
      best, best_name, best_kept = who, name, kept
    end
    from = "(" .. subject .. "|" .. account .. "}"
  end
  return best, best_name, best_kept
end

-- Grants to whoever is next in *line* while there is *room*, to *most* at most. A full fruitless rotation would leave
-- the order as it is: nothing is written for it. One cut short by SUBJECTS_MAX is, so the next call looks at others.
local function serve(line, turn, room, most, room_for, granted)
  if room <= 0 then
    return
  end
  local ring, backs = redis.call("ZRANGE", turn, 0, SUBJECTS_MAX - 1), {}
  local head, size, fruitless, served = 1, #ring, 0, 0
  for _ = 1, SUBJECTS_MAX do
    if room <= 0 or fruitless == size or served == most then
      break
    end
    local subject = ring[head]
    local who, name, kept = first_of(line, subject, room_for)
    local stays = true
    if who then
      stays = leave(name, who)
      hold(name, who, now + who.within, kept)
      granted(name, who)
      room, served, fruitless = room - who.weight, served + 1, 0
    else
      fruitless = fruitless + 1
    end
    head = head + 1
    if stays then
      ring[#ring + 1], backs[#backs + 1] = subject, subject
    else
      size = size - 1
    end
  end
  local last = #backs
  if fruitless == redis.call("ZCARD", turn) then
    last = last - fruitless
  end
  for index = 1, last do
    if redis.call("ZSCORE", turn, backs[index]) then
      redis.call("ZADD", turn, next_place(), backs[index])
    end
  end
end

local function room_of(cap, count)
  return cap == 0 and math.huge or cap - tonumber(count or 0)
end

-- Grants to those who wait in the line, and rings each on its node.
local function pump(total)
  if not lined then
    return
  end
  serve(LINE, TURN, room_of(total, redis.call("HGET", BY, "total")), SUBJECTS_MAX, function(who)
    local kept = sums(who)
    return fits(kept, who, total, who.per_node, who.weight) and kept
  end, function(name, who)
    redis.call(ARGV[3], ARGV[4] .. who.node, name)
  end)
end

-- Tells every node that the queue may find room, if this call gave something back.
local function announce(total)
  if freed and listed and redis.call("EXISTS", QUEUE) > 0 and room_of(total, redis.call("HGET", BY, "total")) > 0 then
    redis.call(ARGV[3], ARGV[5], "")
  end
end

if verb == "begun" then
  local weight, node = tonumber(ARGV[6]), ARGV[9]
  if begun_by then
    local who = read_held(holder)
    if who and (who.weight ~= weight or who.node ~= node) then
      recount(holder, who, weight, node)
    end
  elseif tonumber(redis.call("GET", GONE) or 0) <= now then
    drop(holder)
    hold(holder, { weight = weight, subject = ARGV[7], account = ARGV[8], node = node }, 0)
  end
  return answer("done", 0)
end

local total, awake = tonumber(ARGV[6]), lined and tick()

if verb == "give" then
  give_back()
  reap(awake)
  pump(total)
  announce(total)
  return answer("done", 0)
end

if verb == "dispatch" then
  local per_node, most, node, done = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9], answer("done", 0)
  local lanes = ARGV[10]
  reap(awake)
  pump(total)
  local kept = redis.call("HMGET", BY, "total", "n|" .. node)
  local room = math.min(room_of(total, kept[1]), room_of(per_node, kept[2]))
  serve(QUEUE, QTURN, room, math.min(most, SUBJECTS_MAX), function(who)
    if not string.find(lanes, "|" .. lane_of(who) .. "|", 1, true) then
      return nil
    end
    who.node = node
    local kept_now = sums(who)
    return fits(kept_now, who, total, per_node, who.weight) and kept_now
  end, function(name, who)
    done[#done + 1], done[#done + 2] = name, text(now + who.within)
  end)
  announce(total)
  return done
end

local who = {
  queued = "", place = "0", within = tonumber(ARGV[7]), per_subject = tonumber(ARGV[8]),
  per_account = tonumber(ARGV[9]), per_node = tonumber(ARGV[10]), weight = tonumber(ARGV[11]),
  subject = ARGV[12], account = ARGV[13], node = ARGV[14],
}

if verb == "enlist" then
  reap(awake)
  local begin_by = held_by(holder)
  pump(total)
  if begin_by or redis.call("HEXISTS", BY, "h|" .. holder) == 1 then
    announce(total)
    return answer("done", 0)
  end
  who.queued, who.place = "q" .. ARGV[16], padded(tonumber(ARGV[15]))
  redis.call("DEL", GONE)
  redis.call("HSET", BY, "h|" .. holder, record(who))
  redis.call("ZADD", QUEUE, 0, member(holder, who))
  redis.call("ZADD", QTURN, "NX", next_place(), who.subject)
  redis.call(ARGV[3], ARGV[5], "")
  return answer("done", 0)
end

if waits(holder) then
  local before = read(holder)
  who.place, who.subject, who.account = before.place, before.subject, before.account
  redis.call("HSET", BY, "h|" .. holder, record(who))
  redis.call("ZADD", ASKED, text(awake), holder)
end
reap(awake)

local begin_by = held_by(holder)
local known = begin_by and read_held(holder)
if known and who.weight < known.weight then
  recount(holder, known, who.weight, known.node)
end
pump(total)

if known and who.weight > known.weight then
  known.per_subject, known.per_account = who.per_subject, who.per_account
  if not fits(sums(known), known, total, who.per_node, who.weight - known.weight) then
    announce(total)
    return answer("busy", 0)
  end
  recount(holder, known, who.weight, known.node)
end
begin_by = begin_by or lined and redis.call("ZSCORE", HELD, holder) -- granted by this very call
local kept = not begin_by and not waits(holder) and sums(who, "h|" .. holder)
local granted = kept and fits(kept, who, total, who.per_node, who.weight)
if granted then
  if kept[5] then
    leave(holder, read(holder))
  end
  redis.call("DEL", GONE)
  begin_by = now + who.within
  hold(holder, who, begin_by, kept)
end
announce(total)
if begin_by then
  return answer("granted", tonumber(begin_by))
end
if not kept or kept[5] then
  return answer("queued", 0)
end
local queue_total, queue_per_subject = tonumber(ARGV[15]), tonumber(ARGV[16])
if queue_total == 0 then
  return answer("busy", 0)
end
if redis.call("ZCARD", LINE) >= queue_total or not below(waiting_of(LINE, who.subject), queue_per_subject) then
  return answer("full", 0)
end
who.place = padded(next_place())
redis.call("DEL", GONE)
redis.call("HSET", BY, "seen", text(now), "h|" .. holder, record(who))
redis.call("ZADD", LINE, 0, member(holder, who))
redis.call("ZADD", ASKED, awake and text(awake) or redis.call("HGET", BY, "awake") or 0, holder)
redis.call("ZADD", TURN, "NX", next_place(), who.subject)
return answer("queued", 0)
