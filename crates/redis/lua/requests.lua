-- The requests, one after the other: look at all charges, then take all or none.

local APPLY, REFUND, RESET, RESTORE, ADJUST, BALANCE = 0, 2, 3, 4, 5, 6
local taking = operation == APPLY
local writing = taking or operation == REFUND or operation == RESTORE or operation == ADJUST

-- What MGET cannot show is nothing, or something that is not ours.
local hidden
local function is_hidden(k)
  if k <= in_runs then
    return call('EXISTS', KEYS[k]) == 1
  end
  if not hidden then
    hidden = {}
    local absent = {}
    for i = in_runs + 1, whole do
      if not values[i] then
        absent[#absent + 1] = KEYS[i]
      end
    end
    if call('EXISTS', unpack(absent)) > 0 then
      for i = in_runs + 1, whole do
        hidden[i] = not values[i] and call('EXISTS', KEYS[i]) == 1
      end
    end
  end
  return hidden[k]
end

-- By its place in the plan: the numbers of a limit. By key: those that its state is in.
local numbers, under = {}, {}

-- The keys that have to be written.
local dirty, changed, changes = {}, {}, 0
local function touch(k)
  if not dirty[k] then
    changes = changes + 1
    dirty[k], changed[changes] = true, k
  end
end

-- Brings the state of a key into the numbers of a limit; or takes it as written. Returns the numbers that
-- it is in then; nothing if it is not ours.
local function prepare(k, l, flag)
  local n, from = numbers[l], under[k]
  if not n then
    n = read(l)
    numbers[l] = n
  end
  if from == n then
    return n
  end
  local moved, own
  local how = operation == SETTLE and AS_WRITTEN or floor(flag / 4) % 4
  if from then
    if how == AS_WRITTEN then
      return from
    end
    moved = adopt(k, n, from, how)
  else
    local value = values[k]
    if not value and k <= whole and is_hidden(k) then
      return nil
    end
    moved, own = load(k, n, value, how)
    if moved == nil then
      return nil
    end
    if own and expires(k, own) > now then
      own.changed, n = true, own
    elseif own then
      -- Equals none.
      adopt(k, n, own, FORGET)
    end
  end
  under[k] = n
  if moved then
    touch(k)
  end
  return n
end

local function reset_at(k, n)
  local at = n.books and n.books.resets(k) or expires(k, n)
  return at > now and at or now
end

-- The charges of the request at hand: what is asked, and what each says to that.
local count = 0
local keys, limits, flags, costs, totals = {}, {}, {}, {}, {}
local insteads, watches = {}, {}
local verdicts, whens, lefts, resets = {}, {}, {}, {}

-- What a charge says to a cost. Where a ledger keeps what was used, nothing without a state.
local function judge(i, cost)
  if flags[i] >= 32 and expires(keys[i], limits[i]) == 0 then
    return UNRESTORED, 0, 0
  end
  return decide(keys[i], limits[i], cost)
end

-- What each charge says to so many units: whether none that may refuse does, whether all allow it at
-- once, and whether one that may refuse has to be restored.
local function decide_all(units)
  local allowed, at_once, unrestored = true, true, false
  for i = 1, count do
    local verdict, when, left = judge(i, totals[i] * units)
    verdicts[i], whens[i], lefts[i], resets[i] = verdict, when, left, nil
    if verdict ~= ALLOWED or when > 0 then
      at_once = false
      if verdict ~= ALLOWED and flags[i] % 2 == 1 then
        allowed, unrestored = false, unrestored or verdict == UNRESTORED
      end
    end
  end
  return allowed, at_once, unrestored
end

-- Takes what all allow at once.
local function take_all(units)
  for i = 1, count do
    local k, n, cost, left = keys[i], limits[i], costs[i] * units, lefts[i]
    if not n.companion then
      left = left - totals[i] * units
      if cost > 0 then
        charge(k, n, cost)
        touch(k)
      end
    end
    reply[filled + 1], reply[filled + 2] = left, reset_at(k, n)
    filled = filled + 2
  end
end

-- As many units as every charge that may refuse has, and at least one.
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

-- Whether every charge that may refuse allows the request, that at one place and those that watch it
-- aside.
local function allowed_but_for(place)
  for i = 1, count do
    local may_refuse = flags[i] % 2 == 1 and i ~= place and watches[i] ~= place
    if may_refuse and verdicts[i] ~= ALLOWED then
      return false
    end
  end
  return true
end

-- Whether a charge says no, and knows why.
local function refuses(i)
  return verdicts[i] ~= ALLOWED and verdicts[i] ~= UNRESTORED
end

-- What is done with each charge of a request that is not simply taken by all.
local TAKE, COUNT = 1, 2
local function manners(allowed, elsewhere)
  local chosen = {}
  for i = 1, count do
    local flag, denied, instead = flags[i], verdicts[i] ~= ALLOWED, insteads[i]
    local counts, strikes = flag % 4 >= 2, flag % 32 >= 16
    if verdicts[i] == UNRESTORED then
      chosen[i] = nil
    elseif limits[i].slots then
      -- Taken by a hold, and by nothing else.
      chosen[i] = allowed and not denied and not limits[i].companion and TAKE or nil
    elseif denied and (counts or strikes) then
      chosen[i] = COUNT
    elseif strikes and watches[i] > 0 and refuses(watches[i]) then
      chosen[i] = COUNT
    elseif not denied and not limits[i].companion then
      if allowed or counts or (instead > 0 and not elsewhere and allowed_but_for(instead)) then
        chosen[i] = TAKE
      end
    end
  end
  return chosen
end

-- Takes what a request is allowed to take, and counts what it is refused where that counts. Returns what
-- was done with each charge.
local function take(units, allowed, elsewhere)
  local chosen = manners(allowed, elsewhere)
  for i = 1, count do
    local k, n, cost = keys[i], limits[i], costs[i] * units
    if cost > 0 and chosen[i] == TAKE then
      charge(k, n, cost)
      touch(k)
    elseif cost > 0 and chosen[i] == COUNT then
      overdraw(k, n, cost, 0)
      -- Who has let the request pass is not to be told otherwise.
      if not allowed or flags[i] % 2 == 0 then
        verdicts[i], whens[i] = judge(i, totals[i] * units)
      end
      touch(k)
    end
    -- Later charges of the same key are not to be seen yet.
    local _, _, left = judge(i, 0)
    lefts[i], resets[i] = left, reset_at(k, n)
  end
  return chosen
end

local function report(units, allowed)
  reply[filled + 1], reply[filled + 2], reply[filled + 3] = -1, allowed and 1 or 0, units
  filled = filled + 3
  for i = 1, count do
    reply[filled + 1], reply[filled + 2], reply[filled + 3] = verdicts[i], whens[i], lefts[i]
    reply[filled + 4] = resets[i] or reset_at(keys[i], limits[i])
    filled = filled + 4
  end
end

local function report_foreign(k)
  reply[filled + 1], reply[filled + 2] = -2, k
  filled = filled + 2
end

local function give_back(units, charged_at)
  for i = 1, count do
    local k, n = keys[i], limits[i]
    if expires(k, n) > 0 then
      refund(k, n, costs[i] * units, charged_at)
      touch(k)
    end
  end
end

-- Restores, adjusts or reads the quotas of the request at hand. Three numbers for each are told.
local function keep_books()
  local told, known = 1, 1
  reply[filled + 1], reply[filled + 2], reply[filled + 3] = -1, 1, 0
  for i = 1, count do
    local k, n, one, two, three = keys[i], limits[i], nil, nil, nil
    if operation ~= BALANCE then
      one, two, three, told = unpack_at('<i8i8i8', ARGV[2], told)
    end
    if operation == RESTORE then
      if n.books.restore(k, n, one, two, three) then
        touch(k)
      end
    elseif n.books.adjust(k, n, one or 0, two or 0) then
      touch(k)
    else
      known = 0
    end
  end
  reply[filled + 2], filled = known, filled + 3
  if operation ~= RESTORE then
    reply[filled + 1], reply[filled + 2], reply[filled + 3] = limits[1].books.balance(keys[1])
    filled = filled + 3
  end
end

-- Answers the request at hand, which is for `units`, or for as many of them as there are; it may have
-- been refused elsewhere.
local function answer(units, up_to, elsewhere)
  if operation == RESET then
    for i = 1, count do
      call('DEL', KEYS[keys[i]])
    end
    count = 0
    return report(0, true)
  end
  if operation >= RESTORE then
    return keep_books()
  end
  if operation == REFUND then
    -- What must not happen twice leaves a note in the last key. Later than that is kept, it does not
    -- happen at all.
    local in_time = not ARGV[3] or now - ARGV[2] < ARGV[3] * 1000
    if in_time and (not ARGV[3] or call('SET', KEYS[#KEYS], 1, 'NX', 'PX', ARGV[3])) then
      give_back(units, tonumber(ARGV[2]))
    end
    units, up_to = 0, false
  end
  if up_to and units > 0 then
    units = most(units)
  end
  local allowed, at_once, unrestored = decide_all(units)
  if up_to and units > 1 and not allowed then
    -- What refuses whatever the cost refuses one.
    units = 1
    allowed, at_once, unrestored = decide_all(units)
  end
  if taking and at_once and not up_to and not elsewhere then
    return take_all(units)
  end
  allowed = allowed and not elsewhere
  -- What has to be restored is asked again, and leaves no trace until then.
  if taking and not unrestored then
    take(units, allowed, elsewhere)
  end
  report(allowed and units or 0, allowed)
end

-- Reads the next request of the plan. Its units, its manner, and the place of a key that is not ours.
local function next_request()
  local manner, units, foreign
  count, manner, units, at = unpack_at('<I2BI7', plan, at)
  for i = 1, count do
    local k, l
    k, l, flags[i], insteads[i], watches[i], costs[i], totals[i], at = unpack_at(
      '<I2I2BI2I2I7I7',
      plan,
      at
    )
    local n = prepare(k, l, flags[i])
    keys[i], limits[i] = k, n
    if not n then
      foreign = foreign or k
    end
  end
  return units, manner, foreign
end

local function write_changes()
  for i = 1, changes do
    local k = changed[i]
    local n = under[k]
    local ends = expires(k, n)
    if ends > 0 and ends + margin > now then
      store(k, n, ends)
    else
      call('DEL', KEYS[k])
    end
  end
end
