-- Answers the requests, one after the other.

local RESET, ADJUST, BALANCE = 3, 5, 6
local taking = operation == APPLY
local writing = taking or operation == REFUND or operation == RESTORE or operation == ADJUST

-- Charges a request that all its limits allow at once, and answers it.
local function take_all(units)
  for i = 1, count do
    local k, n, cost, left = keys[i], limits[i], costs[i] * units, lefts[i]
    if not n.companion then
      left = left - totals[i] * units
      if cost > 0 then
        charge(k, n, cost)
        touch(k)
      end
      if n.fair then
        -- The client may be ahead now.
        local _
        _, _, left = decide(k, n, 0)
      end
    end
    reply[filled + 1], reply[filled + 2] = left, reset_at(k, n)
    filled = filled + 2
  end
end

-- Returns how many of `units` every charge that may deny has left; at least 1.
local function most(units)
  if not decide_all(0) then
    return 1
  end
  for i = 1, count do
    if flags[i] % 2 == 1 and totals[i] > 0 and not limits[i].companion then
      units = math.min(units, div(lefts[i], totals[i]))
    end
  end
  return math.max(units, 1)
end

local function report_foreign(k)
  reply[filled + 1], reply[filled + 2] = -2, k
  filled = filled + 2
end

local function report_crowded()
  filled = filled + 1
  reply[filled] = -3
end

local function refund_all(units, charged_at)
  for i = 1, count do
    local k, n = keys[i], limits[i]
    if expires(k, n) > 0 and not was_reset(i) then
      refund(k, n, costs[i] * units, charged_at)
      touch(k)
    end
  end
  -- The answer is in the numbers of the caller.
  for i = 1, count do
    if others[i] then
      keys[i], limits[i] = converted(i), others[i]
    end
  end
end

-- Restores, adjusts or reads the quotas of the current request. Without room for a new state, nothing is restored.
local function update_quotas()
  for i = 1, operation == RESTORE and count or 0 do
    if expires(keys[i], limits[i]) == 0 and not has_room(flags[i]) then
      return report_crowded()
    end
  end
  local offset, known = 1, 1
  reply[filled + 1], reply[filled + 2], reply[filled + 3] = -1, 1, 0
  for i = 1, count do
    local k, n, one, two, three = keys[i], limits[i], nil, nil, nil
    if operation ~= BALANCE then
      one, two, three, offset = unpack_at('<i8i8i8', ARGV[2], offset)
    end
    if operation == RESTORE then
      if n.quota.restore(k, n, one, two, three) then
        touch(k)
      end
    elseif n.quota.adjust(k, n, one or 0, two or 0) then
      touch(k)
    else
      known = 0
    end
  end
  reply[filled + 2], filled = known, filled + 3
  if operation ~= RESTORE then
    reply[filled + 1], reply[filled + 2], reply[filled + 3] = limits[1].quota.balance(keys[1])
    filled = filled + 3
  end
end

-- Answers the current request for `units`. `up_to` means that fewer units are acceptable. `elsewhere` means
-- that another cluster slot has denied the request.
local function answer(units, up_to, elsewhere)
  if operation == RESET then
    for i = 1, count do
      call('DEL', KEYS[keys[i]])
      if limits[i].fair then
        call('DEL', KEYS[limits[i].mark])
      end
    end
    count = 0
    return report(0, true)
  end
  if operation >= RESTORE then
    return update_quotas()
  end
  if operation == REFUND then
    -- The last key remembers a refund that must not happen twice. A refund that comes after this key
    -- would have expired is not made.
    local in_time = not ARGV[3] or now - ARGV[2] < ARGV[3] * 1000
    if in_time and (not ARGV[3] or call('SET', KEYS[#KEYS], 1, 'NX', 'PX', ARGV[3])) then
      refund_all(units, tonumber(ARGV[2]))
    end
    units, up_to = 0, false
  end
  if up_to and units > 0 then
    units = most(units)
  end
  local allowed, at_once, unrestored = decide_all(units)
  if up_to and units > 1 and not allowed then
    -- The request is denied whatever it costs, so it counts as one unit.
    units = 1
    allowed, at_once, unrestored = decide_all(units)
  end
  if taking and at_once and not up_to and not elsewhere then
    return take_all(units)
  end
  allowed = allowed and not elsewhere
  -- A request that needs a restore is repeated, and must not change anything now.
  if taking and not unrestored then
    take(units, allowed, elsewhere)
  end
  report(allowed and units or 0, allowed)
end
