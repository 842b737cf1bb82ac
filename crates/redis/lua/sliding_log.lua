-- Sliding log: see sliding_log.rs.
--
-- A log may be long, so it is never read whole. Each entry has the sum of all costs up to and including its
-- own. The cost of a range of entries is then a difference. A binary search finds the entry that must expire
-- before a cost fits. Expired entries at the front are cut off only when they are more than half of all
-- entries.
--
-- Limit  The window, the limit (7 bytes each).
-- State  'l', the window, the limit, the latest time seen, the sum of all expired entries (7 bytes each), how
--        many entries at the front have expired, how many entries there are (4 bytes each); then the entries,
--        oldest first: time and sum (7 bytes each).

local MOST, BLOCK, HEADER, ENTRY = 10000, 32, 37, 14
local LAST_SUM = 9007199254740991

local seen, gone_sum, gone, count = {}, {}, {}, {}
-- By key: blocks of entries as they were read, changed entries, and from which entry on all are replaced.
local blocks, written, replaced = {}, {}, {}
-- By key: the name of the key that the entries are read from. A new state may start as a copy of another one.
local source = {}

local function read(l)
  local n = {}
  n.window, n.limit = unpack_at('<I7I7', plan, l + 1)
  return n
end

-- Returns the time and the sum of entry i, counted from 1.
local function entry(k, i)
  local changed = written[k][i]
  if changed then
    return changed[1], changed[2]
  end
  local block = floor((i - 1) / BLOCK)
  local text = blocks[k][block]
  if not text then
    local from = HEADER + block * BLOCK * ENTRY
    text = call('GETRANGE', source[k], from, from + BLOCK * ENTRY - 1)
    blocks[k][block] = text
  end
  local at, sum = unpack_at('<I7I7', text, (i - 1 - block * BLOCK) * ENTRY + 1)
  return at, sum
end

-- Returns the first entry that has not expired and for which `holds` is true; count + 1 if there is none.
-- `holds` must be true for all later entries too.
local function first_where(k, holds)
  local low, high, step = gone[k] + 1, count[k] + 1, 1
  -- The entry is most often near the front.
  while low < high do
    local probe = low + step - 1
    if probe >= high then
      break
    end
    if holds(entry(k, probe)) then
      high = probe
      break
    end
    low, step = probe + 1, step * 4
  end
  while low < high do
    local middle = floor((low + high) / 2)
    if holds(entry(k, middle)) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local function last_sum(k)
  if count[k] == 0 then
    return gone_sum[k]
  end
  local _, sum = entry(k, count[k])
  return sum
end

-- Returns the first entry in the window, and the sum of all entries before it.
local function live(k, window)
  local first = first_where(k, function(at)
    return at + window > now
  end)
  local left = gone_sum[k]
  if first > gone[k] + 1 then
    local _, sum = entry(k, first - 1)
    left = math.max(left, sum)
  end
  return first, left
end

local function trim(k, window)
  local first, left = live(k, window)
  gone[k], gone_sum[k], seen[k] = first - 1, left, math.max(seen[k], now)
end

-- Drops entries at the front up to a sum.
local function forget(k, sum)
  gone_sum[k] = sum
  gone[k] = first_where(k, function(_, at_entry)
    return at_entry > sum
  end) - 1
end

-- Returns the entries from number `from` on, each with its own cost, and the sum before them.
local function costs_from(k, from)
  local list, before = {}, gone_sum[k]
  if from > gone[k] + 1 then
    local _, sum = entry(k, from - 1)
    before = math.max(before, sum)
  end
  local last = before
  for i = from, count[k] do
    local at, sum = entry(k, i)
    list[#list + 1] = { at, sum - last }
    last = sum
  end
  return list, before
end

-- Replaces the entries from number `from` on by entries with these costs. `sum` is the sum before them.
local function replace_from(k, from, list, sum)
  local changed = written[k]
  for i = from, count[k] do
    changed[i] = nil
  end
  local i = from
  for _, it in ipairs(list) do
    if it[2] > 0 then
      sum = sum + it[2]
      changed[i] = { it[1], sum }
      i = i + 1
    end
  end
  count[k], replaced[k] = i - 1, math.min(replaced[k] or from, from)
end

local function push(k, cost)
  if cost == 0 then
    return
  end
  if last_sum(k) + cost > LAST_SUM then
    -- After 2^53 units, sums start from 0 again.
    local list = costs_from(k, gone[k] + 1)
    gone[k], gone_sum[k] = 0, 0
    replace_from(k, 1, list, 0)
  end
  local at, sum, last = math.max(now, seen[k]), last_sum(k) + cost, count[k]
  -- If the server is out of memory, logs do not grow: new entries are merged into the newest.
  local is_long = full or last - gone[k] >= MOST
  if last == gone[k] or (entry(k, last) ~= at and not is_long) then
    last = last + 1
  end
  count[k], written[k][last] = last, { at, sum }
end

-- Scales the entries from the limit `limit` to the limit `to`. Scales the sums of the newest entries, so that
-- the sum is still right after the oldest entries have left the window.
local function scale(k, limit, to)
  local list, before, after = costs_from(k, gone[k] + 1), 0, 0
  for i = #list, 1, -1 do
    before = before + list[i][2]
    local share = math.min(same_share(before, limit, to), to)
    list[i][2], after = share - after, share
  end
  gone[k], gone_sum[k] = 0, 0
  replace_from(k, 1, list, 0)
end

local function carry_over(k, n, window, limit, how)
  if window == n.window and limit == n.limit then
    return false
  end
  local scales = how == SHARE and limit > 0 and n.limit > 0
  if how == FORGET then
    seen[k], gone_sum[k], gone[k], count[k] = 0, 0, 0, 0
    written[k], replaced[k] = {}, 1
  elseif scales or window ~= n.window then
    trim(k, window)
  end
  if scales then
    scale(k, limit, n.limit)
  end
  return true
end

-- `copied` is the name of the key to copy, if the state is a copy.
local function load(k, n, copied, how)
  seen[k], gone_sum[k], gone[k], count[k] = 0, 0, 0, 0
  blocks[k], written[k], source[k] = {}, {}, copied or KEYS[k]
  replaced[k] = copied and 1 or nil
  local head = redis.pcall('GETRANGE', source[k], 0, HEADER + BLOCK * ENTRY - 1)
  if type(head) == 'table' then
    return nil
  end
  if #head == 0 then
    return false
  end
  if #head < HEADER + ENTRY then
    return nil
  end
  local kind, window, limit
  kind, window, limit, seen[k], gone_sum[k], gone[k], count[k] = unpack_at('<c1I7I7I7I7I4I4', head)
  local size = call('STRLEN', source[k])
  if kind ~= 'l' or size ~= HEADER + count[k] * ENTRY or gone[k] >= count[k] then
    return nil
  end
  blocks[k][0] = string.sub(head, HEADER + 1)
  if how == AS_WRITTEN then
    local is_other = window ~= n.window or limit ~= n.limit
    return false, is_other and { window = window, limit = limit } or nil
  end
  return carry_over(k, n, window, limit, how)
end

local function adopt(k, n, from, how)
  return carry_over(k, n, from.window, from.limit, how)
end

local function decide(k, n, cost)
  local window, limit = n.window, n.limit
  local _, left = live(k, window)
  local sum = last_sum(k)
  local spent = sum - left
  local available = math.max(limit - spent, 0)
  if cost > limit then
    return NEVER, 0, available
  end
  if spent + cost <= limit then
    return ALLOWED, 0, available
  end
  local at = entry(k, first_where(k, function(_, at_entry)
    return at_entry >= sum + cost - limit
  end))
  return UNTIL, at + window, available
end

local function charge(k, n, cost)
  trim(k, n.window)
  push(k, cost)
end

local function overdraw(k, n, cost, most)
  local deepest = n.limit + most
  trim(k, n.window)
  local spent = last_sum(k) - gone_sum[k]
  cost = math.min(cost, deepest)
  -- Usage that is already above `deepest` stays.
  local excess = math.max(cost - math.max(deepest - spent, 0), 0)
  if excess > 0 then
    forget(k, gone_sum[k] + excess)
  end
  push(k, cost)
  return cost - excess
end

local function refund(k, n, cost, charged_at)
  trim(k, n.window)
  local last = first_where(k, function(at)
    return at > charged_at
  end) - 1
  -- Finds how far back the refund reaches.
  local from, left = last + 1, cost
  while from > gone[k] + 1 and left > 0 do
    local _, sum = entry(k, from - 1)
    local before = gone_sum[k]
    if from - 2 > gone[k] then
      local _, earlier = entry(k, from - 2)
      before = math.max(before, earlier)
    end
    left, from = left - math.min(sum - before, left), from - 1
  end
  local list, sum = costs_from(k, from)
  for i = last - from + 1, 1, -1 do
    local taken = math.min(list[i][2], cost)
    list[i][2], cost = list[i][2] - taken, cost - taken
  end
  replace_from(k, from, list, sum)
end

local function expires(k, n)
  if count[k] == gone[k] then
    return 0
  end
  local at = entry(k, count[k])
  return at + n.window
end

local function store(k, n, at)
  local window, key = n.window, KEYS[k]
  local function head()
    return pack('<c1I7I7I7I7I4I4', 'l', window, n.limit, seen[k], gone_sum[k], gone[k], count[k])
  end
  local function packed(from)
    local parts = {}
    for i = from, count[k] do
      parts[#parts + 1] = pack('<I7I7', entry(k, i))
    end
    return table.concat(parts)
  end
  local from = replaced[k]
  if from and from > gone[k] + 1 then
    -- Earlier entries stay as they are.
    local kept = call('GETRANGE', key, HEADER + gone[k] * ENTRY, HEADER + (from - 1) * ENTRY - 1)
    local rest = packed(from)
    gone[k], count[k] = 0, count[k] - gone[k]
    return keep(k, head() .. kept .. rest, at)
  end
  if from or count[k] <= BLOCK then
    local rest = packed(gone[k] + 1)
    gone[k], count[k] = 0, count[k] - gone[k]
    return keep(k, head() .. rest, at)
  end
  for i, it in pairs(written[k]) do
    call('SETRANGE', key, HEADER + (i - 1) * ENTRY, pack('<I7I7', it[1], it[2]))
  end
  if gone[k] > BLOCK and gone[k] > count[k] / 2 then
    local rest = call('GETRANGE', key, HEADER + gone[k] * ENTRY, -1)
    gone[k], count[k] = 0, count[k] - gone[k]
    return keep(k, head() .. rest, at)
  end
  call('SETRANGE', key, 0, head())
  call('PEXPIRE', key, string.format('%.0f', floor((at - now + margin) / 1000) + 1))
end
