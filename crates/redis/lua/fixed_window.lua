-- Fixed window: see fixed_window.rs.
--
-- Limit  The head of its states: 'f', the window, the limit (7 bytes each).
-- State  The head, the end of the window, the usage (7 bytes each).

local ends_at, used = {}, {}
-- By key: the end of the window of the stored state.
local standing = {}

local function end_of(window, time)
  return time - time % window + window
end

-- Returns the numbers of a head.
local function numbers_of(head)
  local n = { head = head }
  n.window, n.limit = unpack_at('<I7I7', head, 2)
  n.ending = end_of(n.window, now)
  return n
end

local function read(l)
  return numbers_of(sub(plan, l + 1, l + 15))
end

-- Returns the current window, and its usage.
local function current(k, ending)
  local at = ends_at[k]
  if at >= ending then
    return at, used[k]
  end
  return ending, 0
end

local function carry_over(k, n, window, limit, how)
  standing[k] = nil
  if how == FORGET then
    ends_at[k], used[k] = 0, 0
    return
  end
  if window ~= n.window then
    local ending = end_of(window, now)
    local at, seen = current(k, ending), now
    if at > ending then
      seen = at - 1
    end
    if ends_at[k] < ending then
      used[k] = 0
    end
    ends_at[k] = end_of(n.window, seen)
  end
  if how == SHARE and limit > 0 and n.limit > 0 then
    used[k] = math.min(same_share(used[k], limit, n.limit), n.limit)
  end
end

local function load(k, n, value, how)
  if not value then
    ends_at[k], used[k] = 0, 0
    return false
  end
  if #value ~= 29 then
    return nil
  end
  local head
  head, ends_at[k], used[k] = unpack_at('<c15I7I7', value)
  if head == n.head then
    standing[k] = ends_at[k]
    return false
  end
  local kind, window, limit = unpack_at('<c1I7I7', head)
  if kind ~= 'f' or window == 0 then
    return nil
  end
  if how == AS_WRITTEN then
    standing[k] = ends_at[k]
    return false, numbers_of(head)
  end
  carry_over(k, n, window, limit, how)
  return true
end

local function adopt(k, n, from, how)
  carry_over(k, n, from.window, from.limit, how)
  return true
end

local function decide(k, n, cost)
  local limit, at, spent = n.limit, current(k, n.ending)
  local available = limit > spent and limit - spent or 0
  if cost > limit then
    return NEVER, 0, available
  end
  if spent + cost <= limit then
    return ALLOWED, 0, available
  end
  return UNTIL, at, available
end

local function charge(k, n, cost)
  local at, spent = current(k, n.ending)
  ends_at[k], used[k] = at, spent + cost
end

local function overdraw(k, n, cost, most)
  local at, spent = current(k, n.ending)
  local taken = math.min(cost, math.max(n.limit + most - spent, 0))
  ends_at[k], used[k] = at, spent + taken
  return taken
end

local function refund(k, n, cost, charged_at)
  local at, spent = current(k, n.ending)
  if charged_at + n.window >= at then
    ends_at[k], used[k] = at, math.max(spent - cost, 0)
  end
end

local function expires(k)
  return used[k] == 0 and 0 or ends_at[k]
end

local function store(k, n, at)
  if standing[k] == ends_at[k] then
    -- SETRANGE keeps the expiry of the key.
    call('SETRANGE', KEYS[k], '22', pack('<I7', used[k]))
  else
    keep(k, pack('<c15I7I7', n.head, ends_at[k], used[k]), at)
  end
end
