-- Sliding counter in sub-buckets: see sliding_counter.rs.
--
-- Limit  The number of sub-buckets (1 byte), microseconds in a sub-bucket, the limit (7 bytes each).
-- State  'n', the number of sub-buckets (1 byte), microseconds in a sub-bucket, the limit, the number of
--        the newest sub-bucket (7 bytes each), and the counts, oldest first, one more than there are
--        sub-buckets (4 bytes each). 'N': the same with counts of 7 bytes.

local newest, counts = {}, {}

local function read(l)
  local n = {}
  n.buckets, n.length, n.limit = unpack_at('<BI7I7', plan, l + 1)
  return n
end

local function format_of(kind, buckets)
  return '<' .. string.rep(kind == 'n' and 'I4' or 'I7', buckets + 1)
end

-- Returns the current sub-bucket: never before the newest one in the state.
local function running_at(k, length)
  return math.max(floor(now / length), newest[k])
end

-- Returns the position of the first count that still matters when `running` is the current sub-bucket.
local function first_live(k, running, buckets)
  return math.min(running - newest[k], buckets + 1) + 1
end

local function sum_from(list, first)
  local sum = 0
  for i = first, #list do
    sum = sum + list[i]
  end
  return sum
end

-- Makes `running` the newest sub-bucket, and drops those that leave the window.
local function advance(k, running, buckets)
  local list, old, steps = {}, counts[k], running - newest[k]
  for i = 1, buckets + 1 do
    list[i] = old[i + steps] or 0
  end
  counts[k], newest[k] = list, running
  return list
end

-- Subtracts `amount` from a count; returns the part that the count did not have.
local function drain(list, i, amount)
  local taken = math.min(list[i], amount)
  list[i] = list[i] - taken
  return amount - taken
end

-- Moves the counts into sub-buckets of another length.
local function move(k, n, buckets, length)
  local list, last = counts[k], newest[k]
  local old_running = running_at(k, length)
  local seen = now
  if last > floor(now / length) then
    seen = (last + 1) * length - 1
  end
  local running = floor(seen / n.length)
  local moved = {}
  for i = 1, n.buckets + 1 do
    moved[i] = 0
  end
  for i = first_live(k, old_running, buckets), #list do
    if list[i] > 0 then
      local ended = (last - buckets + i) * length - 1
      local place = n.buckets + 1 - running + math.min(floor(ended / n.length), running)
      if place >= 1 then
        moved[place] = moved[place] + list[i]
      end
    end
  end
  counts[k], newest[k] = moved, running
end

-- Returns the numbers of a state if they differ from `n`.
local function other(n, buckets, length, limit)
  if n.buckets ~= buckets or n.length ~= length or n.limit ~= limit then
    return { buckets = buckets, length = length, limit = limit }
  end
end

local function carry_over(k, n, buckets, length, limit, how)
  if not other(n, buckets, length, limit) then
    return false
  end
  if how == FORGET then
    newest[k], counts[k] = 0, {}
    return true
  end
  if n.buckets ~= buckets or n.length ~= length then
    move(k, n, buckets, length)
  end
  if how == SHARE and limit > 0 and n.limit > 0 then
    -- Scales the sums of the newest counts. So the sum is still right after the oldest counts have left the
    -- window.
    local list, before, after = counts[k], 0, 0
    for i = #list, 1, -1 do
      before = before + list[i]
      local share = math.min(same_share(before, limit, n.limit), n.limit)
      list[i], after = share - after, share
    end
  end
  return true
end

local function load(k, n, value, how)
  if not value then
    newest[k], counts[k] = 0, {}
    return false
  end
  if #value < 23 then
    return nil
  end
  local kind, buckets, length, limit, last = unpack_at('<c1I1I7I7I7', value)
  local width = kind == 'n' and 4 or 7
  if (kind ~= 'n' and kind ~= 'N') or length == 0 or #value ~= 23 + width * (buckets + 1) then
    return nil
  end
  local list = { unpack_at(format_of(kind, buckets), value, 24) }
  -- The last value is the position after the counts, not a count.
  list[buckets + 2] = nil
  newest[k], counts[k] = last, list
  if how == AS_WRITTEN then
    return false, other(n, buckets, length, limit)
  end
  return carry_over(k, n, buckets, length, limit, how)
end

local function adopt(k, n, from, how)
  return carry_over(k, n, from.buckets, from.length, from.limit, how)
end

local function decide(k, n, cost)
  local buckets, length, limit = n.buckets, n.length, n.limit
  local first, list = first_live(k, running_at(k, length), buckets), counts[k]
  local spent = sum_from(list, first)
  local available = math.max(limit - spent, 0)
  if cost > limit then
    return NEVER, 0, available
  end
  if spent + cost <= limit then
    return ALLOWED, 0, available
  end
  local i = first
  spent = spent - list[i]
  while spent + cost > limit or list[i] == 0 do
    i = i + 1
    spent = spent - list[i]
  end
  return UNTIL, (newest[k] + i) * length, available
end

local function charge(k, n, cost)
  local last = n.buckets + 1
  local list = advance(k, running_at(k, n.length), n.buckets)
  list[last] = list[last] + cost
end

local function overdraw(k, n, cost, most)
  local last, deepest = n.buckets + 1, n.limit + most
  local list = advance(k, running_at(k, n.length), n.buckets)
  local spent = sum_from(list, 1)
  cost = math.min(cost, deepest)
  -- Usage that is already above `deepest` stays.
  local excess = math.max(cost - math.max(deepest - spent, 0), 0)
  local left = excess
  for i = 1, last do
    left = drain(list, i, left)
  end
  list[last] = list[last] + cost
  return cost - excess
end

local function refund(k, n, cost, charged_at)
  local list = counts[k]
  local buckets = n.buckets
  local from = floor(charged_at / n.length) - newest[k] + buckets + 1
  for i = math.min(from, #list), first_live(k, running_at(k, n.length), buckets), -1 do
    cost = drain(list, i, cost)
  end
end

local function expires(k, n)
  local list = counts[k]
  for i = #list, 1, -1 do
    if list[i] > 0 then
      return (newest[k] + i) * n.length
    end
  end
  return 0
end

local function store(k, n, at)
  local list = counts[k]
  local buckets, length = n.buckets, n.length
  local kind = sum_from(list, 1) < 4294967296 and 'n' or 'N'
  local value = pack('<c1I1I7I7I7', kind, buckets, length, n.limit, newest[k])
    .. pack(format_of(kind, buckets), unpack(list))
  keep(k, value, at)
end
