-- Token bucket and GCRA, and the most of a leaky bucket: see meter.rs.
-- A state is the tick at which the allowance is whole again, and a fraction of a tick.
--
-- Limit  The head of its states (15 bytes: 'a' for ticks of a microsecond or 'b' for those of a
--        millisecond, capacity, units in a token; both 7 bytes), units refilled per tick (4 bytes).
-- State  The head and the tick (7 bytes). If more than one unit is refilled per tick: then the
--        fraction and the units refilled per tick (4 bytes each).

local whole_at, fraction = {}, {}
local HEAD, TOKEN, RATE, CAPACITY, TICK, FULL = 1, 2, 3, 4, 5, 6

local function read_meter(l, at)
  local kind, head, capacity, token, rate
  head, rate, at = unpack_at('<c15I4', ARGV[4], at)
  kind, capacity, token = unpack_at('<c1I7I7', head)
  numbers[l] = { head, token, rate, capacity, kind == 'a' and 1 or 1000, capacity * token }
  return at
end
local read = read_meter

-- The first tick at which at most `debt` units are missing.
local function first_tick_owing(at, part, rate, debt)
  local first = at - div(debt - part, rate)
  return first > 0 and first or 0
end

-- Puts the state of k `units` after a tick and a fraction.
local function put_later(k, at, part, units, rate)
  if rate == 1 then
    whole_at[k], fraction[k] = at + units, 0
  else
    units = units + part
    local ticks = div(units, rate)
    whole_at[k], fraction[k] = at + ticks, units - ticks * rate
  end
end

local function carry_over(k, n, at, part, token, rate, capacity, tick)
  local full = capacity * token
  local seen, here = first_tick_owing(at, part, rate, full), floor(now / tick)
  if seen < here then
    seen = here
  end
  local missing = at < seen and 0 or (at - seen) * rate + part
  if missing > full then
    missing = full
  end
  local tokens = -div(-missing, token)
  if tokens > n[CAPACITY] then
    tokens = n[CAPACITY]
  end
  seen = seen * tick
  if seen < now then
    seen = now
  end
  put_later(k, floor(seen / n[TICK]), 0, tokens * n[TOKEN], n[RATE])
end

local function load(k, l, value)
  if not value then
    whole_at[k], fraction[k] = 0, 0
    return false
  end
  local length, head, at, part, rate = #value, nil, nil, 0, 1
  if length == 22 then
    head, at = unpack_at('<c15I7', value)
  elseif length == 30 then
    head, at, part, rate = unpack_at('<c15I7I4I4', value)
  else
    return nil
  end
  local n = numbers[l]
  if head == n[HEAD] and rate == n[RATE] then
    whole_at[k], fraction[k] = at, part
    return false
  end
  local kind, capacity, token = unpack_at('<c1I7I7', head)
  if (kind ~= 'a' and kind ~= 'b') or token == 0 or rate == 0 then
    return nil
  end
  carry_over(k, n, at, part, token, rate, capacity, kind == 'a' and 1 or 1000)
  return true
end

local function adopt(k, l, from)
  local n, old = numbers[l], numbers[from]
  if old[HEAD] == n[HEAD] and old[RATE] == n[RATE] then
    return false
  end
  carry_over(k, n, whole_at[k], fraction[k], old[TOKEN], old[RATE], old[CAPACITY], old[TICK])
  return true
end

local function missing_at(k, n, tick)
  local at = whole_at[k]
  if at < tick then
    return 0
  end
  return (at - tick) * n[RATE] + fraction[k]
end

local function decide_meter(k, l, cost)
  local n = numbers[l]
  local token, full = n[TOKEN], n[FULL]
  local missing = missing_at(k, n, floor(now / n[TICK]))
  local left = n[CAPACITY] - cost
  if left >= 0 and missing <= left * token then
    return ALLOWED, 0, div(full - missing, token)
  end
  if missing > full then
    missing = full
  end
  local available = div(full - missing, token)
  if left < 0 then
    return NEVER, 0, available
  end
  local first = first_tick_owing(whole_at[k], fraction[k], n[RATE], left * token)
  return UNTIL, first * n[TICK], available
end
local decide = decide_meter

local function charge(k, l, cost)
  local n = numbers[l]
  local at, here = whole_at[k], floor(now / n[TICK])
  if at < here then
    put_later(k, here, 0, cost * n[TOKEN], n[RATE])
  else
    put_later(k, at, fraction[k], cost * n[TOKEN], n[RATE])
  end
end

local function charge_denied(k, l, cost)
  local n = numbers[l]
  local here, full = floor(now / n[TICK]), n[FULL]
  local owed = missing_at(k, n, here)
  if owed >= full then
    return
  end
  if cost > n[CAPACITY] then
    cost = n[CAPACITY]
  end
  local debt = owed + cost * n[TOKEN]
  put_later(k, here, 0, debt < full and debt or full, n[RATE])
end

local function refund(k, l, cost, charged_at)
  local n = numbers[l]
  local rate, part = n[RATE], fraction[k]
  if cost > n[CAPACITY] then
    cost = n[CAPACITY]
  end
  local units = cost * n[TOKEN]
  local ticks = floor(now / n[TICK]) - floor(charged_at / n[TICK])
  if ticks > div(units, rate) then
    units = 0
  elseif ticks > 0 then
    units = units - ticks * rate
  end
  -- So many whole ticks back, and then forward by what that was too much.
  local back, left = 0, part - units
  if left < 0 then
    back = -div(left, rate)
    left = back * rate - (units - part)
  end
  if back > whole_at[k] then
    whole_at[k], fraction[k] = 0, 0
  else
    put_later(k, whole_at[k] - back, 0, left, rate)
  end
end

local function expires(k, l)
  local at = whole_at[k]
  if fraction[k] > 0 then
    at = at + 1
  end
  return at * numbers[l][TICK]
end

local function store(k, l, at)
  local n, value = numbers[l], nil
  if n[RATE] == 1 then
    value = pack('<c15I7', n[HEAD], whole_at[k])
  else
    value = pack('<c15I7I4I4', n[HEAD], whole_at[k], fraction[k], n[RATE])
  end
  keep(k, value, at, n[FULL] / n[RATE] * n[TICK])
end
