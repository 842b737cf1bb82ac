-- Sliding counter, two-window estimate: see two_window.rs.
--
-- Limit  The head of its states: 'w' for ticks of a microsecond or 'x' for those of a millisecond,
--        the ticks of a window, the limit (7 bytes each).
-- State  The head, the number of the current window, its count, the count of the previous window (7
--        bytes each).

local number, count, before = {}, {}, {}

local function tick_of(kind)
  return kind == 'w' and 1 or 1000
end

-- Returns the numbers of a head.
local function numbers_of(head)
  local n, kind = { head = head }, nil
  kind, n.window, n.limit = unpack_at('<c1I7I7', head)
  n.tick = tick_of(kind)
  return n
end

local function read(l)
  return numbers_of(sub(plan, l + 1, l + 15))
end

-- Returns the current window and both counts, and the ticks of the previous window that still count.
local function current(k, tick, window)
  local here = floor(now / tick)
  local running = floor(here / window)
  local newest = number[k]
  if running < newest then
    return newest, count[k], before[k], window
  end
  local share = window - here % window
  if running == newest then
    return running, count[k], before[k], share
  end
  return running, 0, running - newest == 1 and count[k] or 0, share
end

local function estimate(counted, previous, share, window)
  return counted - div(-previous * share, window)
end

-- Returns the largest count that is exact.
local function most_of(n)
  return div(2 ^ 52 - 1, n.window)
end

local function carry_over(k, n, tick, window, limit, how)
  if how == FORGET then
    number[k], count[k], before[k] = 0, 0, 0
    return
  end
  local most, counted, previous = n.limit, count[k], before[k]
  if tick * window ~= n.tick * n.window then
    local running, share
    running, counted, previous, share = current(k, tick, window)
    local seen = now
    if running > floor(floor(now / tick) / window) then
      seen = (running + 1) * window * tick - 1
    end
    number[k] = floor(floor(seen / n.tick) / n.window)
    counted, previous = estimate(counted, previous, share, window), 0
  end
  local bound = most_of(n)
  if how == SHARE and limit > 0 and most > 0 then
    local both = same_share(counted + previous, limit, most)
    counted = same_share(counted, limit, most)
    -- If the current count is cut off at the bound, the part that is cut off does not go to the previous
    -- count.
    previous = counted > bound and same_share(previous, limit, most) or both - counted
  else
    -- Usage above the old limit stays above the new limit.
    counted = math.min(counted, most + math.max(counted - limit, 0))
    previous = math.min(previous, most + math.max(previous - limit, 0))
  end
  count[k], before[k] = math.min(counted, bound), math.min(previous, bound)
end

local function load(k, n, value, how)
  if not value then
    number[k], count[k], before[k] = 0, 0, 0
    return false
  end
  if #value ~= 36 then
    return nil
  end
  local head
  head, number[k], count[k], before[k] = unpack_at('<c15I7I7I7', value)
  if head == n.head then
    return false
  end
  local kind, window, limit = unpack_at('<c1I7I7', head)
  if (kind ~= 'w' and kind ~= 'x') or window == 0 then
    return nil
  end
  if how == AS_WRITTEN then
    return false, numbers_of(head)
  end
  carry_over(k, n, tick_of(kind), window, limit, how)
  return true
end

local function adopt(k, n, from, how)
  carry_over(k, n, from.tick, from.window, from.limit, how)
  return true
end

-- Returns the first tick of the window `running` at which at most `room` units of the count `previous` still
-- count. If there is no such tick, returns the first tick of the next window.
local function frees(running, previous, room, window)
  local share = previous == 0 and window or math.min(div(room * window, previous), window)
  return (running + 1) * window - share
end

local function decide(k, n, cost)
  local tick, window, limit = n.tick, n.window, n.limit
  local running, counted, previous, share = current(k, tick, window)
  local available = math.max(limit - estimate(counted, previous, share, window), 0)
  if cost > limit then
    return NEVER, 0, available
  end
  -- A cost of 0 always fits.
  if cost == 0 or cost <= available and counted + cost <= limit then
    return ALLOWED, 0, available
  end
  local room = limit - counted - cost
  if room >= 0 then
    return UNTIL, frees(running, previous, room, window) * tick, available
  end
  return UNTIL, frees(running + 1, counted, limit - cost, window) * tick, available
end

local function charge(k, n, cost)
  number[k], count[k], before[k] = current(k, n.tick, n.window)
  count[k] = count[k] + cost
end

local function overdraw(k, n, cost, most)
  local running, counted, previous, share = current(k, n.tick, n.window)
  local deepest = math.min(n.limit + most, most_of(n))
  local room = deepest - estimate(counted, previous, share, n.window)
  local taken = math.min(cost, math.max(room, 0))
  number[k], count[k], before[k] = running, counted + taken, previous
  return taken
end

local function refund(k, n, cost, charged_at)
  local running, counted, previous = current(k, n.tick, n.window)
  local charged = floor(floor(charged_at / n.tick) / n.window)
  if charged >= running then
    counted = math.max(counted - cost, 0)
  elseif charged + 1 == running then
    previous = math.max(previous - cost, 0)
  end
  number[k], count[k], before[k] = running, counted, previous
end

local function expires(k, n)
  if count[k] == 0 and before[k] == 0 then
    return 0
  end
  return (number[k] + (count[k] == 0 and 1 or 2)) * n.window * n.tick
end

local function store(k, n, at)
  local value = pack('<c15I7I7I7', n.head, number[k], count[k], before[k])
  keep(k, value, at)
end
