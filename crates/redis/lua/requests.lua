-- The requests, one after the other: look at all charges, then take all or none.

local APPLY, REFUND, RESET = '0', '2', '3'
local operation = ARGV[3]

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

-- By key: the limit whose numbers its state is in. The keys whose states have to be written, and
-- how many those are.
local under, dirty, changed, changes = {}, {}, {}, 0
local reply, filled = { now }, 1

local function write_later(k)
  if not dirty[k] then
    changes = changes + 1
    changed[changes], dirty[k] = k, true
  end
end

-- The state of a key in the numbers of a limit. False if it is not ours.
local function prepare(k, l)
  local from, carried = under[k], false
  if from == nil then
    local value = values[k]
    if not value and k <= whole and is_hidden(k) then
      return false
    end
    carried = load(k, l, value)
    if carried == nil then
      return false
    end
  elseif from ~= l then
    carried = adopt(k, l, from)
  end
  if carried then
    write_later(k)
  end
  under[k] = l
  return true
end

-- Requests of several charges, and whatever else is not a plain check. Made when first needed.
local function with_several()
  local key, limit, flags, cost, total = {}, {}, {}, {}, {}
  local verdict, when, left, reset = {}, {}, {}, {}

  -- What each charge says to so many units, and whether none that may refuse does.
  local function decide_all(count, units)
    local allowed = true
    for i = 1, count do
      local said, instant, free = decide(key[i], limit[i], total[i] * units)
      verdict[i], when[i], left[i] = said, instant, free
      if said ~= ALLOWED and flags[i] % 2 == 1 then
        allowed = false
      end
    end
    return allowed
  end

  -- As many units as every charge that may refuse has, and at least one.
  local function most(count, units)
    if not decide_all(count, 0) then
      return 1
    end
    for i = 1, count do
      if flags[i] % 2 == 1 and total[i] > 0 then
        units = math.min(units, div(left[i], total[i]))
      end
    end
    return math.max(units, 1)
  end

  -- Takes what a request is allowed to take, and counts what it is refused where that counts.
  local function take(count, units, allowed)
    for i = 1, count do
      local k, l, taken, counts = key[i], limit[i], cost[i] * units, flags[i] >= 2
      local again = total[i] ~= cost[i]
      if taken > 0 and verdict[i] == ALLOWED then
        if allowed or counts then
          charge(k, l, taken)
          left[i] = left[i] - taken
          write_later(k)
        end
      elseif taken > 0 and counts then
        charge_denied(k, l, taken)
        verdict[i], when[i] = decide(k, l, total[i] * units)
        again = true
        write_later(k)
      end
      if again then
        local _, _, free = decide(k, l, 0)
        left[i] = free
      end
      -- Before a later charge of the same key is taken.
      reset[i] = expires(k, l)
    end
  end

  return function(count, up_to, units, charged_at, at)
    local foreign
    for i = 1, count do
      key[i], limit[i], flags[i], cost[i], total[i], at = unpack_at('<I2I2I1I7I7', ARGV[5], at)
      if not foreign and not prepare(key[i], limit[i]) then
        foreign = key[i]
      end
    end
    if foreign then
      reply[filled + 1], reply[filled + 2] = -2, foreign
      filled = filled + 2
      return at
    end
    if operation == RESET then
      for i = 1, count do
        call('DEL', KEYS[key[i]])
      end
      count = 0
    elseif operation == REFUND then
      -- What must not happen twice leaves a note in the last key.
      if not ARGV[7] or call('SET', KEYS[#KEYS], 1, 'NX', 'PX', ARGV[7]) then
        for i = 1, count do
          if expires(key[i], limit[i]) > 0 then
            refund(key[i], limit[i], cost[i] * units, charged_at)
            write_later(key[i])
          end
        end
      end
      units, up_to = 0, 0
    end
    if up_to == 1 and units > 0 then
      units = most(count, units)
    end
    local allowed = decide_all(count, units)
    if operation == APPLY then
      take(count, units, allowed)
    else
      for i = 1, count do
        reset[i] = expires(key[i], limit[i])
      end
    end
    reply[filled + 1], reply[filled + 2] = -1, allowed and 1 or 0
    reply[filled + 3] = allowed and units or 0
    filled = filled + 3
    for i = 1, count do
      reply[filled + 1], reply[filled + 2], reply[filled + 3] = verdict[i], when[i], left[i]
      reply[filled + 4] = reset[i] > now and reset[i] or now
      filled = filled + 4
    end
    return at
  end
end

local several
local at, length, requests, next_key = 1, #ARGV[5], ARGV[5], 1
while at <= length do
  local count, up_to, units, charged_at
  count, at = unpack_at('<I2', requests, at)
  if count > 0 then
    up_to, units, charged_at, at = unpack_at('<I1I7I7', requests, at)
    several = several or with_several()
    at = several(count, up_to, units, charged_at, at)
  else
    -- Plain checks, each of a key that was not seen before.
    local run, l, flags, cost
    run, next_key, l, flags, cost, at = unpack_at('<I2I2I2I1I7', requests, at)
    for k = next_key, next_key + run - 1 do
      if not prepare(k, l) then
        reply[filled + 1], reply[filled + 2] = -2, k
        filled = filled + 2
      else
        local said, instant, free = decide(k, l, cost)
        if said == ALLOWED and cost > 0 then
          charge(k, l, cost)
          free = free - cost
          if not dirty[k] then
            changes = changes + 1
            changed[changes], dirty[k] = k, true
          end
        elseif cost > 0 and said ~= ALLOWED and flags >= 2 then
          charge_denied(k, l, cost)
          said, instant = decide(k, l, cost)
          local _
          _, _, free = decide(k, l, 0)
          write_later(k)
        end
        local reset = expires(k, l)
        reset = reset > now and reset or now
        if said == ALLOWED and instant == 0 then
          reply[filled + 1], reply[filled + 2] = free, reset
          filled = filled + 2
        else
          local passes = said == ALLOWED or flags % 2 == 0
          reply[filled + 1], reply[filled + 2] = -1, passes and 1 or 0
          reply[filled + 3], reply[filled + 4] = passes and 1 or 0, said
          reply[filled + 5], reply[filled + 6], reply[filled + 7] = instant, free, reset
          filled = filled + 7
        end
      end
    end
  end
end

if operation == APPLY or operation == REFUND then
  for i = 1, changes do
    local k = changed[i]
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
