-- Makes a hold, unless there is one with this id. This file is the fast path, and `hold_decide.lua` is the
-- general path.

local CONFLICT, DENIED, UNKNOWN, TOO_MANY, NO_ROOM = 2, 3, 4, 11, 12
hold.ticket = waits == 1 and ticket or nil

if value then
  if #value < 65 or sub(value, 1, 1) ~= 'h' then
    return { now, FOREIGN, '', record_at }
  end
  return { now, sub(value, 49, 56) == fingerprint and ALREADY or CONFLICT, value, 0 }
end

-- The hold has expired. Its part in this cluster slot is not made, because no instance would end the part.
if absolute and now >= time then
  return { now, UNKNOWN, '', 0 }
end

if open and call('ZCARD', open) >= most then
  -- Holds whose records have expired do not count.
  call('ZREMRANGEBYSCORE', open, '-inf', now - retain)
  if call('ZCARD', open) >= most then
    return { now, TOO_MANY, '', 0 }
  end
end

local units, _, foreign = next_request()
if foreign then
  return { now, FOREIGN, '', foreign }
end

-- Returns whether the hold needs a new state for which there is no room. If so, such states have no costs from now on,
-- so that a denial makes no keys. A hold never uses a shared state: its end would not find what it has taken. A hold
-- without limits needs room if its subject has no open holds.
local function lacks_room()
  if count == 0 then
    return charges > 0 and open and call('EXISTS', open) == 0 and not has_room(0)
  end
  local lacks = false
  for i = 1, count do
    local k = keys[i]
    local is_new = not values[k] and (k <= whole or call('EXISTS', KEYS[k]) == 0)
    if is_new and not limits[i].companion and not has_room(flags[i]) then
      lacks, costs[i] = true, 0
    end
  end
  return lacks
end

-- A hold of 0 units is decided like a hold of 1 unit, and takes nothing.
local asked = math.max(units, 1)
hold.expires, hold.fence = absolute and time or now + time, 0

-- Writes the record. Each charge takes its cost; if `chosen` is given, only the charges in it do. Returns the
-- record without its text, or nil if the key has a value already.
local function write_record(chosen)
  local head = pack(
    HEAD,
    'h',
    0,
    how,
    units,
    0,
    0,
    now,
    hold.expires,
    token,
    fingerprint,
    hold.fence,
    charges
  )
  for _ = 1, charges do
    local place, cost
    place, cost, _, from = unpack_at('<I2I7I7', ARGV[2], from)
    cost = math.min(cost * units, MAX)
    if place > 0 then
      local n = limits[place]
      if n.companion or chosen and not chosen[place] then
        cost = 0
      elseif n.slots then
        cost = math.min(cost, 1)
      end
    end
    head = head .. pack('<I7', cost)
  end
  -- The record is kept longer than the hold lasts: the charges are returned only if an instance finds the
  -- record. NX: a value that is not a string must not be replaced, and GET does not show such a value.
  local kept = floor((math.max(hold.expires - now, 0) + retain) / 1000) + 1
  if not call('SET', record_key, head .. ARGV[4], 'PX', kept, 'NX') then
    return nil
  end
  if index then
    call('ZADD', index, hold.expires, ARGV[5])
    call('PEXPIRE', index, INDEX_KEPT)
  end
  if open then
    call('ZADD', open, hold.expires, ARGV[5])
    call('PEXPIRE', open, INDEX_KEPT)
  end
  return head
end

-- The fast path: all charges allow the hold at once, and none is a concurrency limit.
local lefts, is_plain = { 0 }, not hold.ticket
for i = 1, count do
  local k, n = keys[i], limits[i]
  local verdict, when, left = decide(k, n, totals[i] * asked)
  lefts[i] = n.companion and left or left - totals[i] * units
  is_plain = is_plain
    and verdict == ALLOWED
    and when == 0
    and not n.slots
    and (flags[i] % 64 < 32 or expires(k, n) > 0)
end
if is_plain then
  if lacks_room() then
    return { now, NO_ROOM, '', 0 }
  end
  -- The zeros are room for the answer of one charge.
  reply, filled = { now, DONE, '', -1, -1, 1, units, 0, 0, 0, 0 }, 7
  for i = 1, count do
    local k, n, cost = keys[i], limits[i], costs[i] * units
    if cost > 0 and not n.companion then
      charge(k, n, cost)
      touch(k)
    end
    if n.fair then
      -- The client may be ahead now.
      _, _, lefts[i] = decide(k, n, 0)
    end
    local special = n.quota or n.fair
    local reset = special and special.resets(k, n) or expires(k, n)
    reply[filled + 1], reply[filled + 2], reply[filled + 3] = ALLOWED, 0, lefts[i]
    reply[filled + 4], filled = math.max(reset, now), filled + 4
  end
  reply[3] = write_record()
  if not reply[3] then
    return { now, FOREIGN, '', record_at }
  end
  write_changes()
  return reply
end
