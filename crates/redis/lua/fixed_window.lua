-- Fixed window: see fixed_window.rs.
--
-- Limit  The head of its states (8 bytes: 'f' and the window, 7 bytes), the limit (7 bytes).
-- State  The head, the end of the window, what was used in it (7 bytes each).

local ends_at, used = {}, {}
-- Keys that already hold a state of the window that is running now.
local running = {}
local HEAD, WINDOW, LIMITED, END, START = 1, 2, 3, 4, 5
local USED_AT = 15

local function end_of(window, time)
  return (floor(time / window) + 1) * window
end

local function read(l, at)
  local head, limit, kind, window
  head, limit, at = unpack_at('<c8I7', ARGV[4], at)
  kind, window = unpack_at('<c1I7', head)
  local ending = end_of(window, now)
  numbers[l] = { head, window, limit, ending, head .. pack('<I7', ending) }
  return at
end

-- The window in force, and what is used in it.
local function current(k, ending)
  local at = ends_at[k]
  if at >= ending then
    return at, used[k]
  end
  return ending, 0
end

local function carry_over(k, l, window)
  local ending = end_of(window, now)
  local at, seen = current(k, ending), now
  if at > ending then
    seen = at - 1
  end
  if ends_at[k] < ending then
    used[k] = 0
  end
  ends_at[k] = end_of(numbers[l][WINDOW], seen)
end

local function load(k, l, value)
  if not value then
    ends_at[k], used[k] = 0, 0
    return false
  end
  if #value ~= 22 then
    return nil
  end
  local n = numbers[l]
  if sub(value, 1, USED_AT) == n[START] then
    ends_at[k], used[k], running[k] = n[END], unpack_at('<I7', value, USED_AT + 1), true
    return false
  end
  local head
  head, ends_at[k], used[k] = unpack_at('<c8I7I7', value)
  if head == n[HEAD] then
    return false
  end
  local kind, window = unpack_at('<c1I7', head)
  if kind ~= 'f' or window == 0 then
    return nil
  end
  carry_over(k, l, window)
  return true
end

local function adopt(k, l, from)
  if numbers[from][WINDOW] == numbers[l][WINDOW] then
    return false
  end
  carry_over(k, l, numbers[from][WINDOW])
  return true
end

local function decide(k, l, cost)
  local n = numbers[l]
  local limit, at, spent = n[LIMITED], current(k, n[END])
  local available = limit > spent and limit - spent or 0
  if cost > limit then
    return NEVER, 0, available
  end
  if spent + cost <= limit then
    return ALLOWED, 0, available
  end
  return UNTIL, at, available
end

local function charge(k, l, cost)
  local at, spent = current(k, numbers[l][END])
  ends_at[k], used[k] = at, spent + cost
end

local function charge_denied(k, l, cost)
  local n = numbers[l]
  local at, spent = current(k, n[END])
  local counted = math.min(spent + cost, n[LIMITED])
  ends_at[k], used[k] = at, math.max(spent, counted)
end

local function refund(k, l, cost, charged_at)
  local n = numbers[l]
  local at, spent = current(k, n[END])
  if charged_at + n[WINDOW] >= at then
    ends_at[k], used[k] = at, math.max(spent - cost, 0)
  end
end

local function expires(k, l)
  return used[k] == 0 and 0 or ends_at[k]
end

local function store(k, l, at)
  local n = numbers[l]
  if running[k] and ends_at[k] == n[END] then
    -- It is kept for as long as it has to be.
    call('SETRANGE', KEYS[k], USED_AT, pack('<I7', used[k]))
  else
    keep(k, pack('<c8I7I7', n[HEAD], ends_at[k], used[k]), at, n[WINDOW])
  end
end
