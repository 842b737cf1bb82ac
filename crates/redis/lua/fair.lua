-- Fair shares: a token bucket that many clients share. See fair/mod.rs and fair/clients.rs.
--
-- The bucket is one value. Each client that the bucket knows has a mark, in a key of its own that expires by itself: so
-- a bucket of 100,000 clients costs a request no more than a bucket of ten, and nothing large is ever deleted at once.
-- A mark says of which life of the bucket it is. A bucket that was reset, has expired, or has dropped its clients begins
-- another life, and older marks mean nothing to it.
--
-- Limit    Of one client: the position in the plan of the numbers, the positions in KEYS of the bucket and of the mark,
--          the weight (2 bytes each), the lane, plus 128 if the subject is anonymous (1 byte).
-- Numbers  A number for the next life (4 bytes), the length of the head (1 byte), and the head of its states.
-- Head     'p', microseconds in a tick (2 bytes), capacity, units in a token (7 bytes each), units refilled per tick
--          (4 bytes), the parts of a token in marks (3 bytes), microseconds in a contention epoch (4 bytes), what is
--          earned within the memory (7 bytes), how many lanes (1 byte). Then the share of each lane, plus 32768 if the
--          lane is strict (2 bytes each).
-- State    The head, the life (4 bytes), the time until which the key is kept, the tick (7 bytes each), the generation
--          (4 bytes), the contention epoch (5 bytes), how many clients the current and the previous generation have
--          (3 bytes each), how many shared marks follow the lanes (1 byte). For each lane the numbers that LANE lists.
--          For each mark that further clients of a lane share: the lane (1 byte), and its mark from the generation on.
-- Mark     'k', the life, the generation (4 bytes each), what the client got, divided by its weight (7 bytes), the
--          weight (2 bytes), one more than the epoch in which it contended last (5 bytes).

local MEMORY, MOST_CLIENTS = 30000000, 100000
local HEAD, STATE, MARK, SHARED = '<c1I2I7I7I4I3I4I7B', '<I4I7I7I4I5I3I3B', '<c1I4I4I7I2I5', '<BI4I7I2I5'
-- Of a lane: the missing units, the virtual time, the refilled units that have not moved it yet, the weights of known
-- clients and of contending clients, each in the current and the previous generation or epoch, how far the marks of
-- the previous generation are above those of the current one, and the highest level that a denied client needed in the
-- current and in the previous epoch (clients that were ahead do not count). In tables, a lane has ten places.
local LANE = 'I7I7I7I4I4I4I4I7I7I7'

-- By key. Of a bucket: its life, until when the key is kept, the tick, the generation, the epoch, how many clients the
-- current and the previous generation have, its lanes, and the marks that have to be written. Of a mark: its life, its
-- generation, what the client got, the weight, when it contended, and its generation as it is stored. The mark that
-- further clients of a lane share has the key `-8 * k - lane`. Each variable that functions share costs every call, so
-- there are few.
local buckets, marks = {}, {}

-- Returns the numbers of a head, or nil if it is invalid.
local function numbers_of(head)
  if #head < 38 then
    return nil
  end
  local it, kind, count, from = { head = head, shares = {}, strict = {}, whole = 0 }, nil, nil, nil
  kind, it.tick, it.capacity, it.token, it.rate, it.scale, it.epoch, it.earned, count, from = unpack_at(HEAD, head)
  if kind ~= 'p' or #head ~= 36 + 2 * count then
    return nil
  end
  for lane = 1, count do
    local share
    share, from = unpack_at('<I2', head, from)
    it.strict[lane] = share >= 32768
    it.shares[lane] = share % 32768
    it.whole = it.whole + share % 32768
  end
  it.full, it.reserve, it.half = {}, {}, {}
  for lane = 1, count do
    local full = div(it.capacity * it.token * it.shares[lane], it.whole)
    local reserve = math.max(floor(full / 4), math.min(it.token, math.max(full - it.token, 0)))
    it.full[lane], it.reserve[lane], it.half[lane] = full, reserve, math.max(floor(full / 2), reserve)
  end
  it.lanes, it.most = count, div(2 ^ 53 - 1, it.whole) - it.whole - 2
  it.horizon = it.capacity * it.scale
  return it
end

-- The functions that only fair buckets have. Also the numbers of the plan by their position, and the last life.
local fair = { bases = {}, life = nil }

-- Returns the numbers for a client of n.
local function of_client(numbers, n)
  local lane = math.min(n.lane, numbers.lanes)
  return {
    head = numbers.head,
    numbers = numbers,
    fair = fair,
    own = n.own,
    mark = n.mark,
    weight = n.weight,
    lane = lane,
    -- Marks are named by lane. Under numbers with fewer lanes, the client uses a mark that is not among KEYS.
    has_mark = n.has_mark and lane == n.lane,
    anonymous = n.anonymous,
  }
end

local function read(l)
  local base, own, mark, weight, lane = unpack_at('<I2I2I2I2B', plan, l + 1)
  local numbers = fair.bases[base]
  if not numbers then
    local life, size, from = unpack_at('<I4B', plan, base)
    fair.life = fair.life or life
    numbers = numbers_of(sub(plan, from, from + size - 1))
    fair.bases[base] = numbers
  end
  return of_client(numbers, {
    own = own,
    mark = mark,
    weight = weight,
    lane = lane % 128 + 1,
    has_mark = true,
    anonymous = lane >= 128 and 64 or 0,
  })
end

-- The last look at a client: of which bucket `k`, for which numbers `n` and which `cost`, and what it has read and
-- changed. It holds until something is written.
local seen = {}

-- Forgets all clients. `lanes` are the lanes of the bucket.
local function clear(b, lanes, virtual)
  fair.life = (fair.life + 1) % 4294967296
  b.life, b.epoch, b.current, b.previous = fair.life, 0, 0, 0
  for i = 0, #lanes - 10, 10 do
    lanes[i + 2] = virtual
    for j = i + 3, i + 10 do
      lanes[j] = 0
    end
  end
end

-- Makes the bucket one that was never seen.
local function forget(b, numbers)
  b.tick, b.generation, b.ends, b.lanes = 0, 0, 0, {}
  for i = 1, 10 * numbers.lanes do
    b.lanes[i] = 0
  end
  clear(b, b.lanes, 0)
end

-- Returns `units` of a lane as virtual time of this weight, rounded down.
local function virtual_time(it, units, weight)
  return div(div(units * it.scale, weight), it.token)
end

-- Returns the part of a lane of the `units` that the bucket refills from a tick on.
local function refilled(it, lane, at, units)
  local share, whole = it.shares[lane], it.whole
  if whole == 1 then
    return units
  end
  local remainder = at % whole * (it.rate % whole) % whole
  return div((remainder + units) * share, whole) - div(remainder * share, whole)
end

local function carry_over(k, n, from, how)
  local b, it = buckets[k], n.numbers
  seen.k, b.ends = nil, 0
  if how == FORGET then
    return forget(b, it)
  end
  local at, kept = math.max(floor(now / from.tick), b.tick), {}
  local units = math.min((at - b.tick) * from.rate, from.most)
  for lane = 1, it.lanes do
    local i = 10 * lane - 10
    for j = i + 1, i + 8 do
      kept[j] = b.lanes[j] or 0
    end
    kept[i + 9], kept[i + 10] = 0, 0
    if lane > from.lanes then
      kept[i + 1], kept[i + 2] = 0, 0
    else
      local before, after = from.full[lane], it.full[lane]
      local missing = math.max(kept[i + 1] - refilled(from, lane, b.tick, units), 0)
      if how == SHARE and before > 0 and after > 0 then
        kept[i + 1] = same_share(math.min(missing, before), before, after)
      else
        kept[i + 1] = math.min(-div(-missing, from.token), div(after, it.token)) * it.token
      end
    end
    kept[i + 3] = 0
  end
  b.lanes, b.tick = kept, floor(math.max(at * from.tick, now) / it.tick)
  if from.scale ~= it.scale or from.epoch ~= it.epoch or sub(from.head, 36) ~= sub(it.head, 36) then
    clear(b, kept, it.horizon)
  end
end

local function adopt(k, n, from, how)
  carry_over(k, n, from.numbers, how)
  return true
end

local function load(k, n, value, how)
  local b, shared, at = {}, nil, nil
  buckets[k], seen.k = b, nil
  if not value then
    forget(b, n.numbers)
    return false
  end
  local size = #value > 38 and 36 + 2 * string.byte(value, 36) or 0
  local head, numbers = sub(value, 1, size), n.numbers
  if head ~= n.head then
    numbers = numbers_of(head)
  end
  if not numbers or #value < size + 34 + 58 * numbers.lanes then
    return nil
  end
  b.life, b.ends, b.tick, b.generation, b.epoch, b.current, b.previous, shared, at = unpack_at(STATE, value, size + 1)
  b.lanes = { unpack_at('<' .. string.rep(LANE, numbers.lanes), value, at) }
  -- The position after the lanes.
  at, b.lanes[10 * numbers.lanes + 1] = b.lanes[10 * numbers.lanes + 1], nil
  if #value ~= at - 1 + 19 * shared then
    return nil
  end
  if value ~= values[k] then
    -- A copy of the state that new subjects share. The marks belong to that state.
    b.ends = 0
    clear(b, b.lanes, numbers.horizon)
    shared = 0
  end
  for _ = 1, shared do
    local mark, lane = { life = b.life }, nil
    lane, mark.generation, mark.got, mark.weight, mark.contended, at = unpack_at(SHARED, value, at)
    marks[-8 * k - lane] = mark
  end
  if numbers == n.numbers then
    return false
  end
  if how == AS_WRITTEN then
    return false, of_client(numbers, n)
  end
  carry_over(k, n, numbers, how)
  return true
end

-- Returns a mark, and the index of its generation, 0 or 1; or nil if it is not known.
local function find(b, m)
  local mark = marks[m]
  if not mark then
    mark = {}
    marks[m] = mark
    local value = m > 0 and values[m]
    if value and #value == 23 then
      local kind
      kind, mark.life, mark.generation, mark.got, mark.weight, mark.contended = unpack_at(MARK, value)
      mark.stored = mark.generation
    end
  end
  if mark.life ~= b.life then
    return mark, nil
  end
  local age = b.generation - mark.generation + seen.turned
  return mark, (age == 0 or age == 1) and age or nil
end

-- Notes that the client is denied.
local function contend(at, weight)
  local pool, contended = seen.pool, seen.contended
  if contended == seen.epoch + 1 then
    return
  end
  if contended == seen.epoch and contended > 0 then
    pool[at + 7] = math.max(pool[at + 7] - weight, 0)
  end
  seen.contended, pool[at + 6] = seen.epoch + 1, pool[at + 6] + weight
end

-- Decides `cost` for the client.
local function ask(it, n, at, cost)
  local pool, lane, weight, token, scale = seen.pool, n.lane, n.weight, it.token, it.scale
  local full, reserve, half = it.full[lane], it.reserve[lane], it.half[lane]
  local surplus_from, level = math.max(half, pool[at + 9], pool[at + 10]), math.max(full - pool[at + 1], 0)
  local needs, known, virtual = cost * token, pool[at + 4] + pool[at + 5], pool[at + 2]

  -- What the client earns, and the limit of what it has saved up.
  local all, got = math.max(known, weight), virtual
  local earned = math.min(div(it.earned, all), virtual_time(it, half, weight))
  if it.whole > 1 then
    local part, rest = it.shares[lane], earned % it.whole
    earned = div(earned, it.whole) * part + div(rest * part, it.whole)
  end
  if not seen.is_new then
    got = math.max(seen.got, virtual - math.max(virtual_time(it, full, all), earned), 0)
  end
  seen.got = got

  local is_alone, contended = known == weight, seen.contended
  local contends = contended > 0 and contended >= seen.epoch
  local is_calm = not contends
  if not is_alone and contended > 0 then
    is_calm = contended + div(MEMORY, it.epoch) <= seen.epoch
  end
  if is_alone and is_calm then
    virtual = math.max(virtual, got)
  end
  local others = pool[at + 6] + pool[at + 7]
  if contends then
    others = math.max(others - weight, 0)
  end
  local needed, ahead = needs, got - virtual
  if ahead > 0 then
    -- Beyond 2^53 the products are inexact, and far above what a lane holds.
    needed = math.min(surplus_from - div(-ahead * (others + weight) * token, scale), full)
    if level >= needed then
      virtual = got
    elseif level > surplus_from then
      virtual = virtual + math.min(virtual_time(it, level - surplus_from, others + weight), ahead)
    end
    -- The refill alone moves the virtual time on too.
    local refill = math.min(-div(-ahead * known * token, scale), full)
    needed = math.min(needed, math.max(full + refill - pool[at + 1], 0))
  end
  pool[at + 2] = virtual
  local tolerated, reserved = 0, reserve
  if is_calm then
    if others == 0 then
      tolerated = virtual_time(it, full, weight)
    else
      tolerated = math.max(math.min(earned, virtual_time(it, floor(reserve / 2), weight)), div(scale, weight))
    end
    reserved = is_alone and 0 or floor(reserve / 2)
  end
  local is_ahead = got > virtual + tolerated
  local available, nearly_full = 0, full - floor(reserve / 4)
  if not is_ahead and level >= nearly_full then
    available = div(level, token)
  elseif not is_ahead then
    local owed = math.min(div(math.max(virtual - got, 0) * weight, scale), div(level, token))
    available = math.max(owed, div(math.max(level - reserved, 0), token))
  end
  seen.available, seen.passes = available, not is_ahead and cost <= available
  -- A denied client is not calm from now on.
  local wanted = math.min(reserve + needs, math.max(nearly_full, needs), full)
  seen.needed = math.min(math.max(needed, wanted), full)
  if not seen.passes then
    contend(at, weight)
    if got <= virtual then
      pool[at + 9] = math.max(pool[at + 9], wanted)
    end
  end
end

-- Returns what each lane gets of the `units` that the bucket refills. What full lanes would lose goes to the other lanes
-- that are not strict: by their shares, and what is left in the order of the lanes.
local function inflows(it, b, units)
  if it.lanes == 1 then
    return { units }
  end
  local gets, left, lacking, shares = {}, 0, 0, 0
  for lane = 1, it.lanes do
    local own, missing = refilled(it, lane, b.tick, units), b.lanes[10 * lane - 9]
    gets[lane], left = own, left + math.max(own - missing, 0)
    if missing > own and not it.strict[lane] then
      lacking, shares = lacking + missing - own, shares + it.shares[lane]
    end
  end
  left = math.min(left, lacking)
  local to_divide = left
  for round = 1, 2 do
    for lane = 1, it.lanes do
      local lacks = b.lanes[10 * lane - 9] - gets[lane]
      if left > 0 and lacks > 0 and not it.strict[lane] then
        local part = math.min(round == 1 and div(to_divide * it.shares[lane], shares) or left, lacks)
        gets[lane], left = gets[lane] + part, left - part
      end
    end
  end
  return gets
end

-- Refills a lane, and begins new generations and epochs in it. Writes it to the copy of the bucket.
local function advance(it, lane, before, units, epochs)
  local at, pool, turned = 10 * lane - 10, seen.pool, seen.turned
  local missing, virtual, unmoved, known, earlier, contending, contending_before, shift, wanted, wanted_before =
    unpack(before, at + 1, at + 10)
  if turned > 0 then
    known, earlier = 0, turned == 1 and known or 0
  end
  if epochs > 0 then
    contending, contending_before = 0, epochs == 1 and contending or 0
    wanted, wanted_before = 0, epochs == 1 and wanted or 0
  end
  missing = math.max(missing - units, 0)
  local sum = known + earlier
  if sum > 0 and unmoved + units > 0 then
    unmoved = math.min(unmoved + units, it.full[lane])
    local moved = virtual_time(it, unmoved, sum)
    virtual = virtual + moved
    unmoved = math.max(unmoved + div(-moved * sum * it.token, it.scale), 0)
  end
  if turned == 1 then
    shift = math.max(virtual - it.horizon, 0)
    virtual = virtual - shift
  elseif turned > 1 then
    virtual, unmoved, shift = it.horizon, 0, 0
  end
  pool[at + 1], pool[at + 2], pool[at + 3], pool[at + 4] = missing, virtual, unmoved, known
  pool[at + 5], pool[at + 6], pool[at + 7], pool[at + 8] = earlier, contending, contending_before, shift
  pool[at + 9], pool[at + 10] = wanted, wanted_before
end

-- Reads the client of n, and decides `cost`, on a copy of the bucket.
local function look(k, n, cost)
  if seen.k == k and seen.n == n and seen.cost == cost then
    return
  end
  seen.k, seen.n, seen.cost = k, n, cost
  local b, it, own = buckets[k], n.numbers, n.lane
  local at, pool = 10 * own - 10, {}
  seen.generation = math.max(floor(now / MEMORY), b.generation)
  seen.epoch = math.max(floor(now / it.epoch), b.epoch)
  seen.turned, seen.tick, seen.pool = seen.generation - b.generation, math.max(floor(now / it.tick), b.tick), pool
  local units = math.min((seen.tick - b.tick) * it.rate, it.most)
  for lane, gets in ipairs(inflows(it, b, units)) do
    advance(it, lane, b.lanes, gets, seen.epoch - b.epoch)
  end

  -- Further clients share a mark, and so do all clients of a state that new subjects share.
  local m, mark, from = n.has_mark and n.own == k and n.mark or nil, nil, nil
  if m then
    mark, from = find(b, m)
    if not from and mark.has_place == nil then
      mark.has_place = b.current + b.previous < MOST_CLIENTS and has_room(n.anonymous)
    end
  end
  if not from and not (m and mark.has_place and b.current + b.previous < MOST_CLIENTS) then
    m = -8 * k - own
    mark, from = find(b, m)
  end
  seen.m, seen.mark, seen.from, seen.is_new = m, mark, from, not from
  seen.got, seen.contended = 0, 0
  if from then
    seen.got, seen.contended = mark.got, mark.contended
    if from == 1 then
      -- A mark of the previous generation is above those of the current one.
      seen.got = math.max(mark.got - pool[at + 8], 0)
    end
    pool[at + 4 + from] = math.max(pool[at + 4 + from] - mark.weight, 0)
  end
  pool[at + 4] = pool[at + 4] + n.weight

  ask(it, n, at, math.min(cost, div(it.full[own], it.token)))
end

-- Writes what the last look has read and changed.
local function write(k, n)
  local b, mark, from = buckets[k], seen.mark, seen.from
  if seen.turned > 0 then
    b.current, b.previous = 0, seen.turned == 1 and b.current or 0
  end
  if from == 1 then
    b.previous = b.previous - 1
  end
  if from ~= 0 then
    b.current = b.current + 1
  end
  b.lanes, b.tick, b.generation, b.epoch = seen.pool, seen.tick, seen.generation, seen.epoch
  mark.life, mark.generation, mark.got = b.life, seen.generation, seen.got
  mark.weight, mark.contended = n.weight, seen.contended
  if seen.m > 0 then
    b.changed = b.changed or {}
    b.changed[seen.m] = mark
  end
  seen.k = nil
end

-- Returns the first tick from `at` on at which a lane has refilled `lacks` units, at the latest.
local function tick_after(it, lane, at, lacks)
  if it.whole == 1 then
    return at - div(-lacks, it.rate)
  end
  -- One unit more, because the parts of lanes are rounded.
  return at - div(-(lacks + 1) * it.whole, it.rate * it.shares[lane])
end

local function decide(k, n, cost)
  look(k, n, cost)
  local it, lane, available = n.numbers, n.lane, seen.available
  local capacity = div(it.full[lane], it.token)
  if cost == 0 or (seen.passes and cost <= capacity) then
    return ALLOWED, 0, math.max(available, cost)
  end
  if cost > capacity then
    return NEVER, 0, available
  end
  local lacks = math.max(seen.needed + seen.pool[10 * lane - 9] - it.full[lane], 0)
  local first = tick_after(it, lane, seen.tick, lacks) * it.tick
  return UNTIL, math.max(first, now + 1), math.min(available, cost - 1)
end

-- Takes `units` of the lane, and moves the mark by `cost`.
local function take_units(k, n, units, cost)
  local at = 10 * n.lane - 9
  seen.pool[at] = seen.pool[at] + units
  seen.got = seen.got - div(-cost * n.numbers.scale, n.weight)
  write(k, n)
end

local function charge(k, n, cost)
  look(k, n, cost)
  take_units(k, n, cost * n.numbers.token, cost)
end

local function overdraw(k, n, cost, most)
  look(k, n, 0)
  local it, lane = n.numbers, n.lane
  local deepest = math.min(it.full[lane] + most * it.token, div(it.most, it.whole) * it.shares[lane])
  local room = math.max(deepest, it.full[lane]) - seen.pool[10 * lane - 9]
  local taken = math.min(cost, div(math.max(room, 0), it.token))
  -- What exceeds the capacity does not move the mark beyond the horizon.
  take_units(k, n, taken * it.token, math.min(taken, it.capacity))
  return taken
end

local function refund(k, n, cost, charged_at)
  if cost == 0 then
    return
  end
  look(k, n, 0)
  local it, lane, at = n.numbers, n.lane, 10 * n.lane - 9
  cost = math.min(cost, div(it.full[lane], it.token))
  -- An undone charge is given back whole: the refill since the charge is not subtracted.
  local passed = undoing and 0 or math.max(floor(now / it.tick) - floor(charged_at / it.tick), 0)
  local back = refilled(it, lane, 0, math.min(passed * it.rate, it.most))
  local units = math.max(cost * it.token - back, 0)
  if seen.is_new then
    -- A forgotten client has no mark, and does not get one: it asks for nothing.
    local lanes = buckets[k].lanes
    lanes[at], seen.k = math.max(lanes[at] - units, 0), nil
    return
  end
  seen.pool[at] = math.max(seen.pool[at] - units, 0)
  -- Others could not use what has refilled since then. So it stays a part of the client's share.
  seen.got = math.max(seen.got - div(div(units * it.scale, it.token), n.weight), 0)
  write(k, n)
end

-- Returns the time at which the whole bucket is full again.
function fair.resets(k, n)
  local it, b = n.numbers, buckets[k]
  local last = b.tick
  for lane = 1, it.lanes do
    local missing = b.lanes[10 * lane - 9]
    if missing > 0 then
      last = math.max(last, tick_after(it, lane, b.tick, missing))
    end
  end
  return last * it.tick
end

local function expires(k, n)
  local at, b = fair.resets(k, n), buckets[k]
  if b.current + b.previous > 0 then
    at = math.max(at, (b.generation + 2) * MEMORY)
  end
  return at
end

-- Notes that the bucket has denied the client.
function fair.note(k, n, cost)
  look(k, n, cost)
  write(k, n)
end

-- Returns the amount left in the lane, below zero if it is overdrawn.
function fair.level(k, n)
  look(k, n, 0)
  return div(n.numbers.full[n.lane] - seen.pool[10 * n.lane - 9], n.numbers.token)
end

local function store(k, n, at)
  local b, it, shared, count = buckets[k], n.numbers, '', 0
  for lane = 1, it.lanes do
    local mark = marks[-8 * k - lane]
    if mark and mark.life == b.life and b.generation - mark.generation <= 1 then
      shared = shared .. pack(SHARED, lane, mark.generation, mark.got, mark.weight, mark.contended)
      count = count + 1
    end
  end
  local value, lasts, grid = values[k], nil, nil
  local keeps = value and at <= b.ends
  if not keeps then
    lasts, grid = time_to_live(at)
    b.ends = at - at % -2 ^ (grid + 10)
  end
  local text = pack(STATE, b.life, b.ends, b.tick, b.generation, b.epoch, b.current, b.previous, count)
    .. pack('<' .. string.rep(LANE, it.lanes), unpack(b.lanes, 1, 10 * it.lanes))
    .. shared
  if keeps and #value == #it.head + #text then
    -- SETRANGE keeps the expiry of the key.
    call('SETRANGE', KEYS[k], #it.head, text)
  elseif keeps then
    call('SET', KEYS[k], it.head .. text, 'KEEPTTL')
  else
    call('SET', KEYS[k], it.head .. text, 'PX', lasts)
  end

  for m, mark in pairs(b.changed or {}) do
    local life = pack('<I4', b.life)
    if mark.life ~= b.life then
      -- The bucket has begun another life since.
    elseif mark.stored == mark.generation and sub(values[m], 2, 5) == life then
      -- The mark expires with its generation, so the expiry of the key stays.
      call('SETRANGE', KEYS[m], '9', pack('<I7I2I5', mark.got, mark.weight, mark.contended))
    else
      local text = pack(MARK, 'k', mark.life, mark.generation, mark.got, mark.weight, mark.contended)
      keep(m, text, (mark.generation + 2) * MEMORY)
    end
  end
end
