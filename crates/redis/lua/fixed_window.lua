-- Fixed window: see fixed_window.rs.
--
-- Limit  The window, the limit (7 bytes each); the formats of the number of a window and of the usage (3 characters
--        each); the length of the head, the length of a state (1 byte each); the head; the length of a state without
--        its usage, as a text.
-- State  The head. The number of the window: its end divided by its length. It has as many bytes as 2^54 divided by the
--        window needs. Then the usage. It has as many bytes as the limit needs, or more if the usage is larger.
-- Head   1 byte: 128, plus 16 times the number of decimal zeros at the end of the limit (at most 7), plus the number of
--        decimal zeros at the end of the window (at most 15). Then the limit and the window, both without these zeros,
--        in groups of 7 bits: see `number_at`.
--
-- States of older versions have 29 bytes: 'f', the window, the limit, the end of the window, the usage (7 bytes each).

local ends_at, used = {}, {}
-- By key: the end of the window of the stored state, how many bytes it has before its usage, and for its usage.
local standing, before, width = {}, {}, {}

local function end_of(window, time)
  return time - time % window + window
end

local function read(l)
  local n, size, length, from = {}, nil, nil, nil
  n.window, n.limit, n.number_format, n.format, size, length, from =
    unpack_at('<I7I7c3c3BB', plan, l + 1)
  n.head, n.ending = sub(plan, from, from + size - 1), end_of(n.window, now)
  return n
end

-- Returns the numbers of a state, or nil if they are invalid.
local function numbers_in(value)
  local kind, limit, window, place = string.byte(value), nil, nil, nil
  if kind == 102 and #value == 29 then
    window, limit = unpack_at('<I7I7', value, 2)
    if window > 0 then
      return { window = window, limit = limit, head = sub(value, 1, 15), is_old = true }
    end
  elseif kind and kind >= 128 then
    limit, place = number_at(value, 2)
    if limit then
      window, place = number_at(value, place)
    end
    if window and window > 0 then
      window, limit = window * 10 ^ (kind % 16), limit * 10 ^ (floor(kind / 16) - 8)
      if window >= 2 ^ 53 or limit >= 2 ^ 53 then
        return nil
      end
      local bytes = 1
      while 256 ^ bytes <= 2 ^ 54 / window do
        bytes = bytes + 1
      end
      return {
        window = window,
        limit = limit,
        head = sub(value, 1, place - 1),
        number_format = '<I' .. bytes,
        format = '<I1',
      }
    end
  end
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
  local own = n
  if sub(value, 1, #n.head) ~= n.head then
    own = numbers_in(value)
    if not own then
      return nil
    end
  end
  if own.is_old then
    ends_at[k], used[k] = unpack_at('<I7I7', value, 16)
    before[k], width[k] = 22, 7
    if ends_at[k] % own.window ~= 0 then
      return nil
    end
  else
    local size = #own.head
    before[k] = size + string.byte(own.number_format, 3) - 48
    width[k] = #value - before[k]
    if width[k] < 1 or width[k] > 7 then
      return nil
    end
    ends_at[k] = unpack_at(own.number_format, value, size + 1) * own.window
    used[k] = unpack_at('<I' .. width[k], value, before[k] + 1)
  end
  if own.window == n.window and own.limit == n.limit then
    -- A state of an older version is written anew.
    standing[k] = not own.is_old and ends_at[k]
    return false
  end
  if how == AS_WRITTEN then
    own.ending = end_of(own.window, now)
    standing[k] = ends_at[k]
    return false, own
  end
  carry_over(k, n, own.window, own.limit, how)
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
  local spent = used[k]
  if values[k] and standing[k] == ends_at[k] and spent < 256 ^ width[k] then
    -- SETRANGE keeps the expiry of the key.
    call('SETRANGE', KEYS[k], before[k], pack('<I' .. width[k], spent))
  elseif n.is_old then
    keep(k, pack('<c15I7I7', n.head, ends_at[k], spent), at)
  else
    local bytes = string.byte(n.format, 3) - 48
    while spent >= 256 ^ bytes do
      bytes = bytes + 1
    end
    local number = pack(n.number_format, ends_at[k] / n.window)
    keep(k, n.head .. number .. pack('<I' .. bytes, spent), at)
  end
end
