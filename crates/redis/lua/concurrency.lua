-- Concurrency: see concurrency.rs.
--
-- Limit  The limit (7 bytes).
-- State  A sorted set. The range of the score shows the kind of a member:
--          below 0      'd' and a ticket: a waiting client; the score is the time until which its place is kept,
--                       negated
--          0 to 1       'o' and a ticket: its position in the queue
--          1 and above  'h', the id of a hold, its fence (7 bytes) and owner: the score is the time until which it
--                       has a slot; and 'f': the score is the least fence of the next slot
--
-- `hold` has the `id`, `owner`, `fence` and `expires` of the caller, and its `ticket` if it waits.

local MOST_WAITERS = 1024
local NEXT = 2 ^ -32

local function spell(number)
  return string.format('%.0f', number)
end

local NOW = spell(now)

local function member()
  return 'h' .. hold.id .. pack('<I7', hold.fence) .. hold.owner
end

local function load(k)
  local size = redis.pcall('ZCARD', KEYS[k])
  if type(size) == 'table' then
    return nil
  end
  if size > 0 and operation == HOLD then
    call('ZREMRANGEBYSCORE', KEYS[k], '1', spell(math.max(now - margin, 1)))
    local gone = call('ZRANGEBYSCORE', KEYS[k], '-' .. NOW, '(0')
    for i = 1, #gone do
      call('ZREM', KEYS[k], gone[i], 'o' .. sub(gone[i], 2))
    end
  end
  return false
end

-- Holders keep their slots when the limit changes.
local function adopt()
  return false
end

local function next_fence(k)
  return tonumber(call('ZSCORE', KEYS[k], 'f') or 0)
end

local function held(k)
  local count = call('ZCOUNT', KEYS[k], '(' .. NOW, '+inf')
  return next_fence(k) > now and count - 1 or count
end

-- Returns how many clients wait before the caller: those before its place in the queue, or all if it
-- has no place.
local function ahead(k)
  local place = hold.ticket and call('ZSCORE', KEYS[k], 'o' .. hold.ticket)
  if place then
    return call('ZCOUNT', KEYS[k], '0', '(' .. place)
  end
  return call('ZCOUNT', KEYS[k], '-inf', '(-' .. NOW)
end

-- Returns when the first slot or place in the queue expires.
local function first_end(k)
  local first
  local leases = call('ZRANGEBYSCORE', KEYS[k], '(' .. NOW, '+inf', 'WITHSCORES', 'LIMIT', 0, 2)
  for i = 1, #leases, 2 do
    if leases[i] ~= 'f' then
      first = tonumber(leases[i + 1])
      break
    end
  end
  local places =
    call('ZREVRANGEBYSCORE', KEYS[k], '(-' .. NOW, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if places[2] then
    local place = -tonumber(places[2])
    first = first and math.min(first, place) or place
  end
  return first or now
end

local function decide(k, n, cost)
  local available = math.max(n.limit - held(k) - ahead(k), 0)
  if cost == 0 or available > 0 then
    return ALLOWED, 0, available
  end
  if n.limit == 0 then
    return NEVER, 0, 0
  end
  return UNTIL, first_end(k), 0
end

local function charge(k)
  call('ZADD', KEYS[k], spell(hold.expires), member(), spell(hold.fence + 1), 'f')
end

local function overdraw()
  return 0
end

local function refund(k)
  if operation == SETTLE then
    call('ZREM', KEYS[k], member())
  end
end

local function expires(k)
  local last = tonumber(call('ZREVRANGE', KEYS[k], 0, 0, 'WITHSCORES')[2] or 0)
  local place = -tonumber(call('ZRANGE', KEYS[k], 0, 0, 'WITHSCORES')[2] or 0)
  last = math.max(last, place)
  return last >= 1 and last or 0
end

local function store(k, _, at)
  call('PEXPIRE', KEYS[k], (time_to_live(at)))
end

local slots = { next_fence = next_fence }

-- Keeps a place in the queue until `ends`. Returns how many clients wait before it, or nil if the queue
-- is full.
function slots.wait(k, ends)
  local place = call('ZSCORE', KEYS[k], 'o' .. hold.ticket)
  if not place then
    local last = call('ZREVRANGEBYSCORE', KEYS[k], '(1', '0', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    local number = tonumber(last or 0) + NEXT
    if number >= 1 or call('ZCOUNT', KEYS[k], '-inf', '(0') >= MOST_WAITERS then
      return nil
    end
    place = string.format('%.17g', number)
    call('ZADD', KEYS[k], place, 'o' .. hold.ticket)
  end
  call('ZADD', KEYS[k], spell(-ends), 'd' .. hold.ticket)
  return call('ZCOUNT', KEYS[k], '0', '(' .. place)
end

-- Removes the hold from the queue. Returns whether it had a place there.
function slots.leave(k)
  return call('ZREM', KEYS[k], 'o' .. hold.ticket, 'd' .. hold.ticket) > 0
end

-- Returns whether the hold still has its slot. A reset removes the slots.
function slots.has(k)
  return call('ZSCORE', KEYS[k], member())
end

function slots.renew(k, ends)
  call('ZADD', KEYS[k], 'XX', spell(ends), member())
end

local function read(l)
  return {
    limit = unpack_at('<I7', plan, l + 1),
    slots = slots,
    companion = operation ~= HOLD,
  }
end
