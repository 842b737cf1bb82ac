-- Quota: see quota.rs. The script does not know the calendar: a limit has the boundaries of periods
-- around the time that the caller expects. If the time is beyond these boundaries, the script fails before it
-- writes anything, and names the time. Then the caller sends the boundaries around that time.
--
-- Limit  The head of its states: 'q', or 'Q' if it is closed, the limit, the grace, the most that is carried over,
--        the fingerprint of the calendar (7 bytes each). Then the starts of the two previous periods, of the current
--        one and of the next three, and how long a state is kept after its period (7 bytes each).
-- State  The head, the end of the period, the usage, the amount beside the limit, the time since which charges are
--        in the usage (7 bytes each).

local HEAD, MOST_USED, MOST_EXTRA = 29, 9007199254740991, 4503599627370495
-- A verdict that only quotas have: the caller knows the calendar, and computes the time.
local UNUSED_AFTER = 5

local starts_at, ends_at, used, extra = {}, {}, {}, {}
-- The functions that only quotas have.
local quota = {}

local function read(l)
  local n = { quota = quota }
  n.head = sub(plan, l + 1, l + HEAD)
  n.limit, n.grace, n.rollover, n.calendar = unpack_at('<I7I7I7I7', n.head, 2)
  n.starts = { unpack_at('<I7I7I7I7I7I7', plan, l + HEAD + 1) }
  n.lasts = unpack_at('<I7', plan, n.starts[7])
  n.closed = sub(n.head, 1, 1) == 'Q'
  n.capacity = n.limit + n.grace
  if now < n.starts[2] or now >= n.starts[5] then
    error('TOLLGATE_TIME ' .. string.format('%.0f', now))
  end
  n.now = now
  n.place = n.now < n.starts[3] and 2 or n.now < n.starts[4] and 3 or 4
  return n
end

-- Returns what is carried over into the next period.
local function carried(n, spent, more)
  return math.min(math.max(n.limit + more - spent, 0), n.rollover)
end

-- Returns the end of the current period, its usage, the amount beside the limit, and the time since which
-- charges are in the usage. If the period of the state has ended, `by` has the numbers that it ended under.
local function current(k, n, by)
  local ending = ends_at[k]
  if n.now < ending then
    return ending, used[k], extra[k], starts_at[k]
  end
  local starts, place, more = n.starts, n.place, 0
  if ending > starts[place - 1] then
    more = math.min(carried(by, used[k], extra[k]), n.rollover)
  elseif ending > (starts[place - 2] or starts[place - 1] - 1) then
    more = math.min(by.rollover, n.rollover)
  end
  return starts[place + 1], 0, more, starts[place]
end

local function enter(k, n, by)
  ends_at[k], used[k], extra[k], starts_at[k] = current(k, n, by or n)
end

local function carry_over(k, n, from, how)
  if how == FORGET then
    ends_at[k], used[k], extra[k], starts_at[k] = 0, 0, 0, 0
    return enter(k, n)
  end
  if n.now >= ends_at[k] then
    if ends_at[k] > 0 then
      enter(k, n, from)
    end
  elseif from.calendar ~= n.calendar then
    ends_at[k] = n.starts[n.place + 1]
  end
  if how == SHARE and from.limit > 0 and n.limit > 0 then
    used[k] = math.min(same_share(used[k], from.limit, n.limit), n.capacity + extra[k])
  end
end

-- Returns the numbers of a head. The head may have another calendar than the plan. If so, only the period of
-- the state is known, and after that period the state counts as expired. A charge before the next check then
-- loses the amount to carry over.
local function as_written(n, head)
  local own = { quota = quota, head = head, starts = n.starts, place = n.place, lasts = n.lasts }
  own.limit, own.grace, own.rollover, own.calendar = unpack_at('<I7I7I7I7', head, 2)
  own.closed = sub(head, 1, 1) == 'Q'
  own.capacity, own.is_strange = own.limit + own.grace, own.calendar ~= n.calendar
  own.now = own.is_strange and now or n.now
  return own
end

local function adopt(k, n, from, how)
  carry_over(k, n, from, how)
  return true
end

local function load(k, n, value, how)
  if not value then
    ends_at[k], used[k], extra[k], starts_at[k] = 0, 0, 0, 0
    return false
  end
  if #value ~= HEAD + 28 then
    return nil
  end
  ends_at[k], used[k], extra[k], starts_at[k] = unpack_at('<I7I7I7I7', value, HEAD + 1)
  local head = sub(value, 1, HEAD)
  if head == n.head then
    return false
  end
  if string.find(head, '^[qQ]') == nil then
    return nil
  end
  local from = as_written(n, head)
  if how == AS_WRITTEN then
    return false, from
  end
  return adopt(k, n, from, how)
end

-- Returns the time at which a denied cost would be allowed; nil if there is none. If that time is beyond the known
-- boundaries, returns nil and the end of the state's period: the cost is allowed after the next whole unused period.
local function admitted_at(k, n, cost)
  local starts, ending = n.starts, ends_at[k]
  if n.closed then
    return nil
  end
  if n.now < ending and cost <= n.capacity + carried(n, used[k], extra[k]) then
    return ending
  end
  if cost > n.capacity + n.rollover then
    return nil
  end
  if n.now >= ending then
    local place = n.place
    if ending > starts[place] then
      return starts[place + 2]
    end
    return ending > starts[place - 1] and starts[place + 1]
  end
  for i = 1, 5 do
    if starts[i] >= ending then
      return starts[i + 1]
    end
  end
  return nil, ending
end

local function decide(k, n, cost)
  local _, spent, more = current(k, n, n)
  local available = n.closed and 0 or math.max(n.capacity + more - spent, 0)
  if cost <= available then
    return ALLOWED, 0, available
  end
  local at, ending = admitted_at(k, n, cost)
  if at then
    return UNTIL, at, available
  end
  if ending then
    return UNUSED_AFTER, ending, available
  end
  return NEVER, 0, available
end

local function charge(k, n, cost)
  enter(k, n)
  used[k] = used[k] + cost
end

local function overdraw(k, n, cost, most)
  enter(k, n)
  local deepest = math.min(n.capacity + extra[k] + most, MOST_USED)
  local taken = math.min(cost, math.max(deepest - used[k], 0))
  used[k] = used[k] + taken
  return taken
end

local function refund(k, _, cost, charged_at)
  if charged_at >= starts_at[k] then
    used[k] = math.max(used[k] - cost, 0)
  end
end

local function expires(k, n)
  if n.rollover == 0 or ends_at[k] == 0 or n.is_strange then
    return ends_at[k]
  end
  return ends_at[k] + n.lasts
end

local function store(k, n, at)
  local value = n.head .. pack('<I7I7I7I7', ends_at[k], used[k], extra[k], starts_at[k])
  if n.is_strange then
    -- The script does not know the calendar of this state, so it does not change the time to live.
    call('SET', KEYS[k], value, 'KEEPTTL')
  else
    keep(k, value, at)
  end
end

-- Returns the time at which the whole limit is available again; 0 if it is available now.
function quota.resets(k)
  return used[k] == 0 and 0 or ends_at[k]
end

-- Writes a balance if there is none. Returns whether it was written.
function quota.restore(k, n, ending, spent, more)
  if ends_at[k] > 0 then
    return false
  end
  ends_at[k], used[k], extra[k] = ending, math.min(spent, MOST_USED), math.min(more, MOST_EXTRA)
  starts_at[k] = 0
  for i = 1, 6 do
    if n.starts[i] < ending then
      starts_at[k] = n.starts[i]
    end
  end
  enter(k, n)
  return true
end

-- Adds to a balance; returns whether there is one.
function quota.adjust(k, n, spent, more)
  if ends_at[k] == 0 then
    return false
  end
  enter(k, n)
  used[k] = math.min(math.max(used[k] + spent, 0), MOST_USED)
  extra[k] = math.min(math.max(extra[k] + more, 0), MOST_EXTRA)
  return true
end

function quota.balance(k)
  return used[k], extra[k], ends_at[k]
end
