-- The states of the keys, and the charges of the current request. Each state is read once, in the numbers of the
-- first limit that needs the state. It is written at the end if it has changed.

-- Returns whether key number k exists, although MGET has returned no value for it. Another program wrote such
-- a key: its value is not a string.
local hidden
local function is_hidden(k)
  if k <= in_runs then
    -- `runs.lua` has found the hidden keys of runs.
    return false
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

-- `numbers`: the numbers of a limit, by its position in the plan. `under`: the numbers that a state is in, by
-- its key.
local numbers, under = {}, {}

-- The keys that have to be written.
local dirty, changed, changes = {}, {}, 0
local function touch(k)
  if not dirty[k] then
    changes = changes + 1
    dirty[k], changed[changes] = true, k
  end
end

-- `places`: for each key without room for a state, the key of the shared state. `crowded`: whether the current
-- request needs a state that has no room, and the shared state is not among KEYS.
local places, crowded = {}, false
local prepare
-- By key: whether the state had expired under other numbers. It counts as missing.
local expired = {}

-- Finds a place for a state that does not exist yet. If there is no room, the shared state takes its place. If there
-- is room, the new state starts as a copy of the shared state, because the subject may have used the shared state
-- before. Returns the numbers of the state, or nil if another program wrote the shared value.
local function place_new(k, l, flag, shared, n, how)
  local has_place = operation ~= APPLY and operation ~= REPORT or has_room(flag)
  if shared == 0 then
    crowded = crowded or not has_place
    return n
  end
  local its = prepare(shared, l, flag, false)
  if its and not has_place then
    places[k] = shared
  elseif its and expires(shared, its) > 0 then
    load(k, n, shared > whole and KEYS[shared] or values[shared], how)
  end
  return its and n
end

-- Converts the state of a key to the numbers of a limit, or leaves it as written. Returns the numbers that
-- the state is in afterwards, or nil if another program wrote the value. `shared` is the position of the shared state, 0
-- if it is not among KEYS, or false if the state does not need a place.
function prepare(k, l, flag, shared)
  local n, from = numbers[l], under[k]
  if not n then
    n = read(l)
    numbers[l] = n
  end
  if from == n then
    return n
  end
  local moved, own
  local how = floor(flag / 4) % 4
  if from then
    if stays then
      return from
    end
    -- Two limits of a call may have the same numbers, and so the same head.
    moved = (not n.head or from.head ~= n.head) and adopt(k, n, from, how)
  else
    local value = values[k]
    if not value and k <= whole and is_hidden(k) then
      return nil
    end
    moved, own = load(k, n, value, stays and AS_WRITTEN or how)
    if moved == nil then
      return nil
    end
    if own and expires(k, own) > now then
      n = own
    elseif own then
      adopt(k, n, own, FORGET)
      expired[k] = true
    end
    -- Back-offs and slots are not shared. Neither are quotas that a ledger has to restore.
    if
      shared
      and not value
      and not n.companion
      and not n.slots
      and flag % 64 < 32
      and (k <= whole or expires(k, n) == 0)
    then
      n = place_new(k, l, flag, shared, n, how)
      if not n or crowded or places[k] then
        return n
      end
    end
  end
  under[k] = n
  -- A restore does not change a state that exists.
  if moved and operation ~= RESTORE then
    touch(k)
  end
  return n
end

-- The charges of the current request.
local count = 0
local keys, limits, flags, costs, totals = {}, {}, {}, {}, {}
local insteads, watches = {}, {}
-- By charge: the numbers of its limit, if its state stays in other numbers.
local others = {}

-- Lets the shared state decide charge i, whose own key is k.
local function use_shared(i, k)
  local place, total = places[k], costs[i]
  for earlier = 1, i - 1 do
    if keys[earlier] == place then
      total = total + costs[earlier]
    end
  end
  keys[i], limits[i], totals[i] = place, under[place], math.min(total, NO_BOUND)
  reply[filled + 1], reply[filled + 2] = -4, i
  filled = filled + 2
end

-- Prepares charge i of the current request: its flags and costs are set, and its limit is at position l. Returns k if
-- another program wrote the value of this key.
local function prepare_charge(i, k, l, shared)
  local n = prepare(k, l, flags[i], shared)
  keys[i], limits[i] = k, n
  if places[k] then
    use_shared(i, k)
  elseif not n then
    return k
  end
  if stays then
    local own, its = limits[i], numbers[l]
    local is_same = own == its
      or own.slots
      or own.head and own.head == its.head
      or own.numbers and own.numbers == its.numbers and own.kind == its.kind
    others[i] = (expired[keys[i]] or not is_same) and its or nil
  end
end

-- Returns whether there is nothing to give back of what charge i has taken: a change of numbers has reset it, or it has
-- expired.
local function was_reset(i)
  return expired[keys[i]] or others[i] and floor(flags[i] / 4) % 4 == FORGET
end

-- Reads the next request of the plan. Returns its units, its manner, and the position of a key with a foreign value.
local function next_request()
  local manner, units, foreign
  count, manner, units, at = unpack_at('<I2BI7', plan, at)
  crowded = false
  for i = 1, count do
    local k, l, shared
    k, shared, l, flags[i], insteads[i], watches[i], costs[i], totals[i], at = unpack_at(
      '<I2I2I2BI2I2I7I7',
      plan,
      at
    )
    foreign = prepare_charge(i, k, l, makes_states and shared) or foreign
  end
  return units, manner, foreign
end

local function write(k)
  local n = under[k]
  local ends = expires(k, n)
  if ends > 0 and ends + margin > now then
    store(k, n, ends)
  else
    call('DEL', KEYS[k])
  end
  dirty[k] = nil
end

local function write_changes()
  for i = 1, changes do
    if dirty[changed[i]] then
      write(changed[i])
    end
  end
end

-- Returns the key number of a copy of the state of charge i, in the numbers `others[i]`. The copy is never written.
local function converted(i)
  local k = keys[i]
  if dirty[k] then
    write(k)
    -- Later requests read the state again.
    under[k], values[k] = nil, k <= whole and call('GET', KEYS[k])
  end
  local copy = #KEYS + k
  values[copy] = values[k]
  load(copy, others[i], k > whole and KEYS[k] or values[k], floor(flags[i] / 4) % 4)
  return copy
end
