-- Token bucket and GCRA, and most of a leaky bucket: see meter.rs.
-- A state is the tick at which the allowance is whole again, and a fraction of a tick.
--
-- Limit    The kind of its states without a grid (1 byte), microseconds in a tick (2 bytes), capacity, units in a
--          token (7 bytes each), units refilled per tick (4 bytes), and its numbers as they are in states: their
--          length (1 byte), and the bytes.
-- State    The kind: 128, plus 4 times the grid of its expiry (see `time_to_live`), plus 0 for ticks of a microsecond
--          or 1 for those of a millisecond, plus 2 if more than one unit is refilled per tick. The tick (7 bytes). If
--          more than one unit is refilled per tick, the fraction (4 bytes). Then the numbers. States of older versions
--          have no grid; their kinds are 97, 98, 99 and 100.
-- Numbers  1 byte: the number of decimal zeros at the end of the capacity, times 16, plus the number of
--          decimal zeros at the end of the units in a token. Then the capacity and the units in a token,
--          both without these zeros. Then, if it is more than one, the units refilled per tick. Each of the three
--          is in groups of 7 bits: see `number_at`.

local whole_at, fraction = {}, {}
-- By key: the point of the grid until which the stored state is kept.
local kept = {}

local function read_meter(l)
  local n, size, first = {}, nil, nil
  n.kind, n.tick, n.capacity, n.token, n.rate, size, first = unpack_at('<BI2I7I7I4B', plan, l + 1)
  n.numbers, n.next = sub(plan, first, first + size - 1), first + size
  n.full, n.here = n.capacity * n.token, floor(now / n.tick)
  return n
end
local read = read_meter

-- Returns the numbers of a state: capacity, units in a token, units refilled per tick. Returns nil if they are invalid.
local function numbers_in(value, at, has_rate)
  local zeros, capacity, token, rate = string.byte(value, at), nil, nil, 1
  capacity, at = number_at(value, at + 1)
  if capacity then
    token, at = number_at(value, at)
  end
  if token and has_rate then
    rate, at = number_at(value, at)
  end
  if token and rate and token > 0 and rate > 0 and at == #value + 1 then
    return capacity * 10 ^ floor(zeros / 16), token * 10 ^ (zeros % 16), rate
  end
end

-- Returns the first tick at which at most `debt` units are missing.
local function first_tick_owing(at, part, rate, debt)
  local first = at - div(debt - part, rate)
  return first > 0 and first or 0
end

-- Sets the state of k. The allowance is whole again once `units` are refilled, counted from the tick `at`
-- plus the fraction `part`.
local function put_later(k, at, part, units, rate)
  if rate == 1 then
    whole_at[k], fraction[k] = at + units, 0
  else
    units = units + part
    local ticks = div(units, rate)
    whole_at[k], fraction[k] = at + ticks, units - ticks * rate
  end
end

local function carry_over(k, n, at, part, token, rate, capacity, tick, how)
  kept[k] = nil
  if how == FORGET then
    whole_at[k], fraction[k] = 0, 0
    return
  end
  local full = capacity * token
  local seen, here = first_tick_owing(at, part, rate, full), floor(now / tick)
  if seen < here then
    seen = here
  end
  local missing = at < seen and 0 or (at - seen) * rate + part
  if missing > full then
    missing = full
  end
  local owed
  if how == SHARE and full > 0 and n.full > 0 then
    owed = same_share(missing, full, n.full)
  else
    owed = math.min(-div(-missing, token), n.capacity) * n.token
  end
  seen = seen * tick
  if seen < now then
    seen = now
  end
  put_later(k, floor(seen / n.tick), 0, owed, n.rate)
end

local function load(k, n, value, how)
  if not value then
    whole_at[k], fraction[k] = 0, 0
    return false
  end
  if #value < 8 then
    return nil
  end
  local kind, at = unpack_at('<BI7', value)
  if kind < 97 or kind > 100 and kind < 128 then
    return nil
  end
  -- The grid of the expiry, in microseconds.
  local grid = kind >= 128 and 2 ^ (floor(kind / 4) - 22)
  kind = 128 + (grid and kind or kind - 97) % 4
  local part, head, has_rate = 0, 8, kind >= 130
  if has_rate then
    if #value < 12 then
      return nil
    end
    part, head = unpack_at('<I4', value, 9), 12
  end
  local tick = kind % 2 == 0 and 1 or 1000
  local ends = (part > 0 and at + 1 or at) * tick
  kept[k] = grid and ends - ends % -grid
  if kind == n.kind and sub(value, head + 1) == n.numbers then
    whole_at[k], fraction[k] = at, part
    return false
  end
  local capacity, token, rate = numbers_in(value, head + 1, has_rate)
  if not capacity or at >= 2 ^ 53 then
    return nil
  end
  if how == AS_WRITTEN then
    whole_at[k], fraction[k] = at, part
    local own = { kind = kind, tick = tick, capacity = capacity, token = token, rate = rate }
    own.numbers, own.full, own.here = sub(value, head + 1), capacity * token, floor(now / tick)
    return false, own
  end
  carry_over(k, n, at, part, token, rate, capacity, tick, how)
  return true
end

local function adopt(k, n, from, how)
  if from.kind == n.kind and from.numbers == n.numbers then
    return false
  end
  carry_over(k, n, whole_at[k], fraction[k], from.token, from.rate, from.capacity, from.tick, how)
  return true
end

local function missing_at(k, n, tick)
  local at = whole_at[k]
  if at < tick then
    return 0
  end
  return (at - tick) * n.rate + fraction[k]
end

local function decide_meter(k, n, cost)
  local token, full = n.token, n.full
  local missing = missing_at(k, n, n.here)
  local left = n.capacity - cost
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
  local first = first_tick_owing(whole_at[k], fraction[k], n.rate, left * token)
  return UNTIL, first * n.tick, available
end
local decide = decide_meter

local function charge(k, n, cost)
  local at, here = whole_at[k], n.here
  if at < here then
    put_later(k, here, 0, cost * n.token, n.rate)
  else
    put_later(k, at, fraction[k], cost * n.token, n.rate)
  end
end

local function overdraw(k, n, cost, most)
  local owed, token = missing_at(k, n, n.here), n.token
  -- The debt stays small enough to be counted exactly, and to be refilled within 71 years.
  local bound = math.min(floor(2 ^ 51 / n.tick) * n.rate, 2 ^ 53 - 1)
  local deepest = n.full + math.min(most, div(math.max(bound - n.full, 0), token)) * token
  if owed >= deepest then
    return 0
  end
  local after = math.min(owed + cost * token, deepest)
  put_later(k, n.here, 0, after, n.rate)
  return div(after - owed, token)
end

local function refund(k, n, cost, charged_at)
  local rate, part = n.rate, fraction[k]
  if cost > n.capacity then
    cost = n.capacity
  end
  local units = cost * n.token
  -- An undone charge is given back whole: the refill since the charge is not subtracted.
  local ticks = undoing and 0 or n.here - floor(charged_at / n.tick)
  if ticks > div(units, rate) then
    units = 0
  elseif ticks > 0 then
    units = units - ticks * rate
  end
  -- Goes whole ticks back, and then forward by the excess.
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

local function expires(k, n)
  local at = whole_at[k]
  if fraction[k] > 0 then
    at = at + 1
  end
  return at * n.tick
end

local function store(k, n, at)
  -- Kinds without a fraction always have 0, which is left out.
  local format = n.rate == 1 and '<I7' or '<I7I4'
  local text = pack(format, whole_at[k], fraction[k])
  if values[k] and kept[k] and at <= kept[k] then
    -- SETRANGE keeps the expiry of the key.
    call('SETRANGE', KEYS[k], '1', text)
  else
    local lasts, grid = time_to_live(at)
    call('SET', KEYS[k], string.char(n.kind + 4 * grid) .. text .. n.numbers, 'PX', lasts)
  end
end
