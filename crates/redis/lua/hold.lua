-- Makes a hold, unless there is one of this id.

local CONFLICT, REFUSED = 2, 3
hold.ticket = waits == 1 and ticket or nil

if value then
  if #value < 65 or sub(value, 1, 1) ~= 'h' then
    return { now, FOREIGN, '', record_at }
  end
  return { now, sub(value, 49, 56) == fingerprint and BEFORE or CONFLICT, value, 0 }
end

local units, _, foreign = next_request()
if foreign then
  return { now, FOREIGN, '', foreign }
end
hold.expires, hold.fence = absolute and time or now + time, 0
local allowed, at_once, unrestored = decide_all(units)
local before, chosen = -1, nil

-- Whether all say yes, and none has slots: nothing is to be chosen.
local is_plain = at_once and not hold.ticket
for i = 1, count do
  is_plain = is_plain and not limits[i].slots
end

if is_plain then
  for i = 1, count do
    local k, n, cost = keys[i], limits[i], costs[i] * units
    if not n.companion then
      lefts[i] = lefts[i] - totals[i] * units
      if cost > 0 then
        charge(k, n, cost)
        touch(k)
      end
    end
    -- Later charges of the same key are not to be seen yet.
    resets[i] = reset_at(k, n)
  end
else
  -- Gives who waits a place in the queue of all that refuse, if they lack nothing but slots. How many are
  -- before it, or -1.
  local function wait_for_slots()
    for i = 1, count do
      if flags[i] % 2 == 1 and verdicts[i] ~= ALLOWED and not limits[i].slots then
        return -1
      end
    end
    local longest = 0
    for i = 1, count do
      if flags[i] % 2 == 1 and verdicts[i] ~= ALLOWED then
        local ahead = limits[i].slots.wait(keys[i], now + patience)
        if not ahead then
          return -1
        end
        touch(keys[i])
        longest = math.max(longest, ahead)
      end
    end
    return longest
  end

  local function leave_queues()
    for i = 1, count do
      if limits[i].slots and limits[i].slots.leave(keys[i]) then
        touch(keys[i])
      end
    end
  end

  -- The fence of all slots that are taken; 0 if there are none.
  local function choose_fence()
    local fence = 0
    for i = 1, count do
      if limits[i].slots and verdicts[i] == ALLOWED and costs[i] * units > 0 then
        fence = math.max(fence, now, least, limits[i].slots.next_fence(keys[i]))
      end
    end
    return fence
  end

  if hold.ticket and allowed then
    leave_queues()
  elseif hold.ticket then
    before = wait_for_slots()
  end
  hold.fence = allowed and choose_fence() or 0
  chosen = unrestored and {} or take(units, allowed, false)
end

local head = ''
if allowed then
  head = pack(
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
      if n.companion or chosen and chosen[place] ~= TAKE then
        cost = 0
      elseif n.slots then
        cost = math.min(cost, 1)
      end
    end
    head = head .. pack('<I7', cost)
  end
  -- Kept until nobody can take it for open: what a ledger knows of it ends no sooner. Something that is
  -- not a string cannot be seen, and is not to be replaced.
  local kept = floor((math.max(hold.expires - now, 0) + retain) / 1000) + 1
  if not call('SET', record_key, head .. ARGV[4], 'PX', kept, 'NX') then
    return { now, FOREIGN, '', record_at }
  end
  if index then
    call('ZADD', index, hold.expires, ARGV[5])
    call('PEXPIRE', index, INDEX_KEPT)
  end
end
write_changes()
-- With room for what is told of one charge.
reply, filled = { now, allowed and DONE or REFUSED, head, before, 0, 0, 0, 0, 0, 0, 0 }, 4
report(allowed and units or 0, allowed)
return reply
