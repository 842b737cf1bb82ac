-- Holds, settles and extends: one request, and the record that says what has become of it. The record
-- decides, and is changed in the same step as the states.
--
-- KEYS     After those of the plan: the record; and, where the same server keeps it, the index of what is
--          due: a sorted set of ids by the end of their time.
-- ARGV[2]  The question:
--            id           16 bytes
--            flags         1 byte   1: the index is in KEYS. 2: the hold has slots. 4: `time` is an instant.
--                                   8: done whoever asks, and whatever the time
--            retain        7 bytes  for how long a record is kept after its end
--            how           1 byte   to hold: 0 reservation, 1 lease. To settle: 1 commit, 2 release, 3 expire,
--                                   4 release a lease, 5 undo: as if it had never been
--            time          7 bytes  how long it is to last
--            token        16 bytes
--            fingerprint   8 bytes
--            waits         1 byte   1: there is a ticket
--            ticket       16 bytes
--            patience      7 bytes  for how long the place in the queue is kept
--            units         7 bytes  to settle: those that were used
--            fence         7 bytes  the least it may be
--            charges       2 bytes  how many the record has
--          and for each its place in the plan, or 0 (2 bytes), the cost of a unit and the overdraft
--          (7 bytes each).
-- ARGV[3]  The owner.
-- ARGV[4]  To hold: what the record ends with.
-- ARGV[5]  The id as it stands in the index.
-- Reply    The time, a code, the record or '', a number, and of a hold that was decided its answer in
--          detail. Codes: 0 done, 1 repeated or ended already, 2 another under this id, 3 refused: the number
--          is how many wait before it, or -1; 4 unknown, 5 not yours, 6 not yet, 7 lapsed, 8 not ours: the
--          number is the place in KEYS.
-- Record   'h'; the state: 0 open, 1 consumed, 2 released, 3 expired; the purpose (1 byte each); the units
--          (7 bytes); whether it was committed (1 byte), the units that were used, when it was charged, when
--          it expires (7 bytes each); the token (16 bytes), the fingerprint (8 bytes); the fence (7 bytes); how
--          many charges (2 bytes) and what each has taken (7 bytes each); then what it ends with.

local DONE, BEFORE, CONFLICT, REFUSED, UNKNOWN, NOT_YOURS, NOT_YET, LAPSED, FOREIGN =
  0, 1, 2, 3, 4, 5, 6, 7, 8
local COMMIT, RELEASE, EXPIRE, RELEASE_LEASE, UNDO = 1, 2, 3, 4, 5
local MAX = 9007199254740991
local HEAD = '<c1BBI7BI7I7I7c16c8I7I2'

local id, bits, retain, how, time, token, fingerprint, waits, ticket, patience, amount, least, charges, from =
  unpack_at('<c16BI7BI7c16c8Bc16I7I7I7I2', ARGV[2])
local indexed, has_slots = bits % 2, bits % 4 >= 2
local absolute, certain = bits % 8 >= 4, bits >= 8
local record_key, index = KEYS[#KEYS - indexed], indexed == 1 and KEYS[#KEYS] or nil
hold.id, hold.owner = id, ARGV[3]
hold.ticket = waits == 1 and ticket or nil
undoing = operation == SETTLE and how == UNDO

-- The charges of the record: the place of each in the plan, its cost and overdraft.
local places, unit_costs, overdrafts = {}, {}, {}
for i = 1, charges do
  places[i], unit_costs[i], overdrafts[i], from = unpack_at('<I2I7I7', ARGV[2], from)
end

local function millis(micros)
  return string.format('%.0f', micros / 1000 + 1)
end

local function note_due(ends)
  if not index then
    return
  end
  call('ZADD', index, string.format('%.0f', ends), ARGV[5])
  local kept = math.max(ends - now, 0) + retain
  if call('PTTL', index) < kept / 1000 then
    call('PEXPIRE', index, millis(kept))
  end
end

local function forget_due()
  if index then
    call('ZREM', index, ARGV[5])
  end
end

-- The record that a text is.
local function read_record(text)
  local it, kind, at, last = { taken = {} }, nil, nil, nil
  kind, it.state, it.purpose, it.units, it.committed, it.used, it.charged, it.expires, it.token, it.fingerprint, it.fence, last, at =
    unpack_at(HEAD, text)
  if kind ~= 'h' then
    return nil
  end
  for i = 1, last do
    it.taken[i], at = unpack_at('<I7', text, at)
  end
  it.rest = sub(text, at)
  return it
end

-- Writes a record, which is kept until its time is over and for a while more, and returns its text.
local function write_record(it)
  local parts = {
    pack(
      HEAD,
      'h',
      it.state,
      it.purpose,
      it.units,
      it.committed,
      it.used,
      it.charged,
      it.expires,
      it.token,
      it.fingerprint,
      it.fence,
      #it.taken
    ),
  }
  for i = 1, #it.taken do
    parts[i + 1] = pack('<I7', it.taken[i])
  end
  parts[#parts + 1] = it.rest
  local text = table.concat(parts)
  -- Until nobody can take it for open: what a ledger knows of it ends no sooner.
  local kept = math.max(it.expires - now, 0) + retain
  call('SET', record_key, text, 'PX', millis(kept))
  return text
end

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
      local before = limits[i].slots.wait(keys[i], now + patience)
      if not before then
        return -1
      end
      touch(keys[i])
      longest = math.max(longest, before)
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
local function choose_fence(units)
  local fence = 0
  for i = 1, count do
    if limits[i].slots and verdicts[i] == ALLOWED and costs[i] * units > 0 then
      fence = math.max(fence, now, least, limits[i].slots.next_fence(keys[i]))
    end
  end
  return fence
end

local function make(value)
  if value then
    local it = read_record(value)
    if not it then
      return { now, FOREIGN, '', #KEYS - indexed }
    end
    return { now, it.fingerprint == fingerprint and BEFORE or CONFLICT, value, 0 }
  end
  local units, _, foreign = next_request()
  if foreign then
    return { now, FOREIGN, '', foreign }
  end
  hold.expires = absolute and time or now + time
  local allowed, _, unrestored = decide_all(units)
  local before = -1
  if hold.ticket and allowed then
    leave_queues()
  elseif hold.ticket then
    before = wait_for_slots()
  end
  hold.fence = allowed and choose_fence(units) or 0
  local chosen = {}
  if not unrestored then
    chosen = take(units, allowed, false)
  end
  local text = ''
  if allowed then
    local taken = {}
    for i = 1, charges do
      local place, cost = places[i], math.min(unit_costs[i] * units, MAX)
      if place > 0 and chosen[place] ~= TAKE then
        cost = 0
      elseif place > 0 and limits[place].slots then
        cost = math.min(cost, 1)
      end
      taken[i] = cost
    end
    text = write_record({
      state = 0,
      purpose = how,
      units = units,
      committed = 0,
      used = 0,
      charged = now,
      expires = hold.expires,
      token = token,
      fingerprint = fingerprint,
      fence = hold.fence,
      taken = taken,
      rest = ARGV[4],
    })
    note_due(hold.expires)
  end
  write_changes()
  reply[2], reply[3], reply[4], filled = allowed and DONE or REFUSED, text, before, 4
  report(allowed and units or 0, allowed)
  return reply
end

-- What charge i of a record has taken once it has ended.
local function settled(it, i)
  local taken, place = it.taken[i], places[i]
  if taken == 0 then
    return 0
  end
  local k, n = keys[place], limits[place]
  if n and n.slots then
    refund(k, n)
    touch(k)
    return 0
  end
  local due = 0
  if it.purpose == 1 and how ~= RELEASE and how ~= UNDO then
    due = taken
  elseif how == COMMIT then
    due = math.min(unit_costs[i] * amount, MAX)
  end
  if not n then
    return due
  end
  local known = expires(k, n) > 0
  if due <= taken then
    -- What a change of numbers has forgotten is not given back.
    local forgotten = n.changed and floor(flags[place] / 4) % 4 == FORGET
    if known and due < taken and not forgotten then
      refund(k, n, taken - due, it.charged)
      touch(k)
    end
    return due
  end
  if not known and flags[place] >= 32 then
    return due
  end
  touch(k)
  return taken + overdraw(k, n, due - taken, overdrafts[i])
end

local function settle(it, value)
  local may = certain
    or how == EXPIRE
    or (it.purpose == 0 and (how == COMMIT or how == RELEASE))
    or (it.purpose == 1 and how == RELEASE_LEASE and it.token == token)
  if not may then
    return { now, NOT_YOURS, '', 0 }
  end
  if it.state ~= 0 then
    forget_due()
    return { now, BEFORE, value, 0 }
  end
  if how == EXPIRE and now < it.expires and not certain then
    note_due(it.expires)
    return { now, NOT_YET, value, 0 }
  end
  local _, _, foreign = next_request()
  if foreign then
    return { now, FOREIGN, '', foreign }
  end
  hold.fence = it.fence
  for i = 1, charges do
    it.taken[i] = settled(it, i)
  end
  if how == COMMIT then
    it.state, it.committed, it.used = 1, 1, amount
  else
    it.state = how == EXPIRE and 3 or 2
  end
  local text = ''
  if how == UNDO then
    call('DEL', record_key)
  else
    text = write_record(it)
  end
  forget_due()
  write_changes()
  return { now, DONE, text, 0 }
end

local function extend(it, value)
  if it.purpose == 1 and it.token ~= token and not certain then
    return { now, NOT_YOURS, '', 0 }
  end
  if it.state ~= 0 then
    forget_due()
    return { now, BEFORE, value, 0 }
  end
  if has_slots and now >= it.expires then
    return { now, LAPSED, value, 0 }
  end
  local _, _, foreign = next_request()
  if foreign then
    return { now, FOREIGN, '', foreign }
  end
  hold.fence = it.fence
  it.expires = math.max(it.expires, absolute and time or now + time)
  for i = 1, count do
    if limits[i].slots then
      limits[i].slots.renew(keys[i], it.expires)
      touch(keys[i])
    end
  end
  local text = write_record(it)
  note_due(it.expires)
  write_changes()
  return { now, DONE, text, 0 }
end

local value = call('GET', record_key)
if operation == HOLD then
  return make(value)
end
if not value then
  forget_due()
  return { now, UNKNOWN, '', 0 }
end
local it = read_record(value)
if not it or #it.taken ~= charges then
  return { now, FOREIGN, '', #KEYS - indexed }
end
if operation == SETTLE then
  return settle(it, value)
end
return extend(it, value)
