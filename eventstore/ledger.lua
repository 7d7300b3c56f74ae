-- The ledger: the permits of one pool over all nodes, and its waiting line, in one atomic step.
--
-- KEYS  1 held   zset    holder -> Redis time by which it must have begun; 0 once begun
--       2 by     hash    "s|<subject>" and "a|<account>" -> permits held, changed only together with `held`;
--                        "h|<holder>" -> "<place>|<begin within>|<per subject>|<per account>|<subject>|<account>|<node>";
--                        "place" -> the last number given to a place or a turn;
--                        "seen" -> time of the last call that met a line; "awake" -> see tick
--       3 line   zset    "<subject>|<account>|<place>|<holder>", all scored 0, so the order is that of bytes
--       4 turn   zset    subject with waiting work -> its turn; the lowest is next
--       5 asked  zset    waiting holder -> what "awake" was when it last asked
--       6 gone   string  until when a `begun` of this holder counts as late: it gave its permit back
-- ARGV  1 verb: take, begun or give    2 holder    3 publish command    4 channel of a node, without the node
--       take and give: 5 total (0 is no bound, as for every cap)
--       take: 6 begin within ms    7 per subject    8 per account    9 queue total (0 is no line)
--             10 queue per subject    11 subject    12 account (or empty)    13 node
--       begun: 5 subject    6 account    7 node
-- Names of subjects and accounts come quoted: none contains "|".
-- Answers {granted | queued | busy | full | done, begin by, Redis time}. The only check that can refuse is the first.

local HELD, BY, LINE, TURN, ASKED, GONE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local REAPED_MAX = 64 -- lapsed permits, and silent waiters, taken off by one call
local SUBJECTS_MAX = 32 -- looks at a subject by one call
local ACCOUNTS_MAX = 256 -- accounts of one subject that are looked at; a host is configured with far fewer
local GONE_MS = 30000
local SILENT_MS, STEP_MS = 15000, 3000
local unpack = unpack or table.unpack

local verb, holder = ARGV[1], ARGV[2]
if #KEYS ~= 6 or #ARGV ~= ({ take = 13, begun = 7, give = 5 })[verb] then
  return redis.error_reply("ERR ledger: unknown verb, or a wrong number of keys or arguments")
end

local clock = redis.call("TIME")
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

local function text(number)
  return string.format("%.0f", number)
end

local lined = redis.call("ZCARD", LINE) > 0 -- mostly nobody waits, and then nothing about waiters needs to be asked

local function answer(taken, begin_by)
  return { taken, text(begin_by), text(now) }
end

local function below(count, cap)
  return cap == 0 or count < cap
end

local function held_below(field, cap)
  return cap == 0 or tonumber(redis.call("HGET", BY, field) or 0) < cap
end

local function next_place()
  return redis.call("HINCRBY", BY, "place", 1)
end

local function record(who)
  return table.concat(
    { who.place, text(who.within), text(who.per_subject), text(who.per_account), who.subject, who.account, who.node }, "|")
end

local function read(name)
  local place, within, per_subject, per_account, subject, account, node =
    string.match(redis.call("HGET", BY, "h|" .. name), "^(%d+)|(%d+)|(%d+)|(%d+)|([^|]*)|([^|]*)|(.*)$")
  return {
    place = place, within = tonumber(within), per_subject = tonumber(per_subject),
    per_account = tonumber(per_account), subject = subject, account = account, node = node,
  }
end

-- Counts one permit of *who* more or less; its record goes with the last write, so there are two at most.
local function count(name, who, step)
  local fields = { "s|" .. who.subject }
  if who.account ~= "" then
    fields[2] = "a|" .. who.account
  end
  local kept, set, drop = redis.call("HMGET", BY, unpack(fields)), {}, {}
  if step > 0 then
    set = { "h|" .. name, record(who) }
  else
    drop = { "h|" .. name }
  end
  for index, field in ipairs(fields) do
    local left = tonumber(kept[index] or 0) + step
    if left > 0 then
      set[#set + 1], set[#set + 2] = field, text(left)
    else
      drop[#drop + 1] = field
    end
  end
  if #set > 0 then
    redis.call("HSET", BY, unpack(set))
  end
  if #drop > 0 then
    redis.call("HDEL", BY, unpack(drop))
  end
end

local function waiting_of(subject)
  return redis.call("ZLEXCOUNT", LINE, "[" .. subject .. "|", "(" .. subject .. "}")
end

local function eligible(who)
  return held_below("s|" .. who.subject, who.per_subject)
    and (who.account == "" or held_below("a|" .. who.account, who.per_account))
end

local function hold(name, who, begin_by)
  redis.call("ZADD", HELD, text(begin_by), name)
  count(name, who, 1)
end

local function release(name)
  if redis.call("ZREM", HELD, name) == 1 then
    count(name, read(name), -1)
  end
end

-- Takes *name* off the line; whether its subject has more waiting work.
local function leave(name, who)
  redis.call("ZREM", ASKED, name)
  redis.call("ZREM", LINE, who.subject .. "|" .. who.account .. "|" .. who.place .. "|" .. name)
  if waiting_of(who.subject) > 0 then
    return true
  end
  redis.call("ZREM", TURN, who.subject)
  return false
end

local function waits(name)
  return lined and redis.call("ZSCORE", ASKED, name)
end

local function drop(name)
  if waits(name) then
    leave(name, read(name))
    redis.call("HDEL", BY, "h|" .. name)
  end
end

-- Silence is counted in time during which the ledger was spoken to, at most STEP_MS a call: an outage costs nobody's place.
local function tick()
  local kept = redis.call("HMGET", BY, "seen", "awake")
  local awake = tonumber(kept[2] or 0) + math.max(0, math.min(now - tonumber(kept[1]), STEP_MS))
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

-- The earliest waiter of *subject* that may have a permit: the heads of its accounts' lines are compared.
local function first_of(subject)
  local best, best_name
  local from, to = "[" .. subject .. "|", "(" .. subject .. "}"
  for _ = 1, ACCOUNTS_MAX do
    local found = redis.call("ZRANGEBYLEX", LINE, from, to, "LIMIT", 0, 1)[1]
    if not found then
      break
    end
    local account, name = string.match(found, "^[^|]*|([^|]*)|%d+|(.*)$")
    local who = read(name)
    if eligible(who) and (not best or who.place < best.place) then
      best, best_name = who, name
    end
    from = "(" .. subject .. "|" .. account .. "}"
  end
  return best, best_name
end

local function grant(name, who)
  local more = leave(name, who)
  hold(name, who, now + who.within)
  redis.call(ARGV[3], ARGV[4] .. who.node, name)
  return more
end

-- Grants to whoever is next while there is room. A full fruitless rotation would leave the order as it is: nothing is
-- written for it. One that was cut short by SUBJECTS_MAX is, so the next call looks at other subjects.
local function pump(total)
  if not lined then
    return
  end
  local room = total == 0 and SUBJECTS_MAX or total - redis.call("ZCARD", HELD)
  if room <= 0 then
    return
  end
  local ring, backs = redis.call("ZRANGE", TURN, 0, SUBJECTS_MAX - 1), {}
  local head, size, fruitless = 1, #ring, 0
  for _ = 1, SUBJECTS_MAX do
    if room <= 0 or fruitless == size then
      break
    end
    local subject = ring[head]
    local who, name = first_of(subject)
    local stays = true
    if who then
      stays, room, fruitless = grant(name, who), room - 1, 0
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
  if fruitless == redis.call("ZCARD", TURN) then
    last = last - fruitless
  end
  for index = 1, last do
    if redis.call("ZSCORE", TURN, backs[index]) then
      redis.call("ZADD", TURN, next_place(), backs[index])
    end
  end
end

if verb == "begun" then
  if redis.call("ZSCORE", HELD, holder) then
    redis.call("ZADD", HELD, 0, holder)
  elseif tonumber(redis.call("GET", GONE) or 0) <= now then
    drop(holder)
    local who = { place = "0", within = 0, per_subject = 0, per_account = 0 }
    who.subject, who.account, who.node = ARGV[5], ARGV[6], ARGV[7]
    hold(holder, who, 0)
  end
  return answer("done", 0)
end

local total, awake = tonumber(ARGV[5]), lined and tick()

if verb == "give" then
  release(holder)
  drop(holder)
  redis.call("SET", GONE, text(now + GONE_MS), "PX", GONE_MS)
  reap(awake)
  pump(total)
  return answer("done", 0)
end

local who = {
  place = "0", within = tonumber(ARGV[6]), per_subject = tonumber(ARGV[7]), per_account = tonumber(ARGV[8]),
  subject = ARGV[11], account = ARGV[12], node = ARGV[13],
}
local queue_total, queue_per_subject = tonumber(ARGV[9]), tonumber(ARGV[10])

if waits(holder) then
  local before = read(holder)
  who.place, who.subject, who.account = before.place, before.subject, before.account
  redis.call("HSET", BY, "h|" .. holder, record(who))
  redis.call("ZADD", ASKED, text(awake), holder)
end
reap(awake)
pump(total)

local begin_by = redis.call("ZSCORE", HELD, holder)
if begin_by and (tonumber(begin_by) == 0 or tonumber(begin_by) > now) then
  return answer("granted", tonumber(begin_by))
elseif begin_by then
  release(holder) -- lapsed, and beyond what one call reaps
end
if waits(holder) then
  return answer("queued", 0)
end
if below(redis.call("ZCARD", HELD), total) and eligible(who) then
  redis.call("DEL", GONE)
  hold(holder, who, now + who.within)
  return answer("granted", now + who.within)
end
if queue_total == 0 then
  return answer("busy", 0)
end
if redis.call("ZCARD", LINE) >= queue_total or not below(waiting_of(who.subject), queue_per_subject) then
  return answer("full", 0)
end
who.place = string.format("%016.0f", next_place())
redis.call("DEL", GONE)
redis.call("HSET", BY, "seen", text(now), "h|" .. holder, record(who))
redis.call("ZADD", LINE, 0, who.subject .. "|" .. who.account .. "|" .. who.place .. "|" .. holder)
redis.call("ZADD", ASKED, awake and text(awake) or redis.call("HGET", BY, "awake") or 0, holder)
redis.call("ZADD", TURN, "NX", next_place(), who.subject)
return answer("queued", 0)
