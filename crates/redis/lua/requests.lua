-- The requests, one after the other: look at all charges, then take all or none.

local APPLY, REFUND, RESET = '0', '2', '3'
local operation = ARGV[3]
local taking = operation == APPLY

do
  local at, l, length = 1, 0, #ARGV[4]
  while at <= length do
    l = l + 1
    at = read(l, at + 1)
  end
end

-- The states that are read whole; the others are read by their algorithm.
local whole = tonumber(ARGV[6])
local values = whole > 0 and call('MGET', unpack(KEYS, 1, whole)) or {}

-- What MGET cannot show is nothing, or something that is not ours.
local hidden
local function is_hidden(k)
  if not hidden then
    hidden = {}
    local absent = {}
    for i = 1, whole do
      if not values[i] then
        absent[#absent + 1] = KEYS[i]
      end
    end
    if call('EXISTS', unpack(absent)) > 0 then
      for i = 1, whole do
        hidden[i] = not values[i] and call('EXISTS', KEYS[i]) == 1
      end
    end
  end
  return hidden[k]
end

-- By key: the limit whose numbers its state is in, and whether it has to be written.
local under, dirty = {}, {}
local reply, filled = { now }, 1

-- The state of a key in the numbers of a limit. False if it is not ours.
local function prepare(k, l)
  local from, changed = under[k], false
  if from == nil then
    local value = values[k]
    if not value and k <= whole and is_hidden(k) then
      return false
    end
    changed = load(k, l, value)
    if changed == nil then
      return false
    end
  elseif from ~= l then
    changed = adopt(k, l, from)
  end
  if changed then
    dirty[k] = true
  end
  under[k] = l
  return true
end

local function reset_at(k, l)
  local at = expires(k, l)
  return at > now and at or now
end

local KEY, LIMIT, FLAGS, COST, TOTAL, VERDICT, WHEN, LEFT = 1, 2, 3, 4, 5, 6, 7, 8

-- What each charge says to so many units, and whether none that may refuse does.
local function decide_all(charges, units)
  local allowed = true
  for _, c in ipairs(charges) do
    c[VERDICT], c[WHEN], c[LEFT] = decide(c[KEY], c[LIMIT], c[TOTAL] * units)
    if c[VERDICT] ~= ALLOWED and c[FLAGS] % 2 == 1 then
      allowed = false
    end
  end
  return allowed
end

-- As many units as every charge that may refuse has, and at least one.
local function most(charges, units)
  if not decide_all(charges, 0) then
    return 1
  end
  for _, c in ipairs(charges) do
    if c[FLAGS] % 2 == 1 and c[TOTAL] > 0 then
      units = math.min(units, div(c[LEFT], c[TOTAL]))
    end
  end
  return math.max(units, 1)
end

-- Takes what a request is allowed to take, and counts what it is refused where that counts.
local function take(charges, units, allowed)
  for _, c in ipairs(charges) do
    local k, l, taken, counts = c[KEY], c[LIMIT], c[COST] * units, c[FLAGS] >= 2
    if taken > 0 and c[VERDICT] == ALLOWED then
      if allowed or counts then
        charge(k, l, taken)
        dirty[k] = true
      end
    elseif taken > 0 and counts then
      charge_denied(k, l, taken)
      c[VERDICT], c[WHEN] = decide(k, l, c[TOTAL] * units)
      dirty[k] = true
    end
    -- Later charges of the same key are not to be seen yet.
    local _, _, left = decide(k, l, 0)
    c[LEFT], c.reset = left, reset_at(k, l)
  end
end

local function report(charges, units, allowed)
  reply[filled + 1], reply[filled + 2], reply[filled + 3] = 1, allowed and 1 or 0, units
  filled = filled + 3
  for _, c in ipairs(charges) do
    reply[filled + 1], reply[filled + 2], reply[filled + 3] = c[VERDICT], c[WHEN], c[LEFT]
    reply[filled + 4] = c.reset or reset_at(c[KEY], c[LIMIT])
    filled = filled + 4
  end
end

local function decide_request(charges, units, up_to, charged_at)
  if operation == RESET then
    for _, c in ipairs(charges) do
      call('DEL', KEYS[c[KEY]])
    end
    return report({}, 0, true)
  end
  -- What must not happen twice leaves a note in the last key.
  if operation == REFUND and not (ARGV[7] and not call('SET', KEYS[#KEYS], 1, 'NX', 'PX', ARGV[7])) then
    for _, c in ipairs(charges) do
      if expires(c[KEY], c[LIMIT]) > 0 then
        refund(c[KEY], c[LIMIT], c[COST] * units, charged_at)
        dirty[c[KEY]] = true
      end
    end
  end
  if operation == REFUND then
    units, up_to = 0, 0
  end
  if up_to == 1 and units > 0 then
    units = most(charges, units)
  end
  local allowed = decide_all(charges, units)
  if taking then
    take(charges, units, allowed)
  end
  report(charges, allowed and units or 0, allowed)
end

local at, length, requests = 1, #ARGV[5], ARGV[5]
while at <= length do
  local count, up_to, units, charged_at, k, l, flags, cost, total
  count, up_to, units, charged_at, k, l, flags, cost, total, at =
    unpack_at('<I1I1I7I7I2I2I1I7I7', requests, at)
  local foreign = not prepare(k, l) and k
  local verdict, when, left
  if count == 1 and taking and up_to == 0 and not foreign then
    -- Most requests are one charge, and most are allowed.
    verdict, when, left = decide(k, l, cost * units)
  end
  if verdict == ALLOWED and when == 0 then
    cost = cost * units
    if cost > 0 then
      charge(k, l, cost)
      dirty[k] = true
    end
    reply[filled + 1], reply[filled + 2], reply[filled + 3] = 0, left - cost, reset_at(k, l)
    filled = filled + 3
  else
    local charges = { { k, l, flags, cost, total } }
    for i = 2, count do
      k, l, flags, cost, total, at = unpack_at('<I2I2I1I7I7', requests, at)
      foreign = foreign or (not prepare(k, l) and k)
      charges[i] = { k, l, flags, cost, total }
    end
    if foreign then
      reply[filled + 1], reply[filled + 2] = 2, foreign
      filled = filled + 2
    else
      decide_request(charges, units, up_to, charged_at)
    end
  end
end

if taking or operation == REFUND then
  for k in pairs(dirty) do
    local l = under[k]
    local ends = expires(k, l)
    if ends > 0 and ends + margin > now then
      store(k, l, ends)
    else
      call('DEL', KEYS[k])
    end
  end
end

return reply
