-- Decides requests. A script is this file, the runs of an algorithm that has some, the algorithms that
-- the call needs, each in a file of its own with the formulas of the Rust file of the same name,
-- `states.lua`, `deciding.lua`, `requests.lua`, and `run.lua`; for holds `holds.lua`, which says what it adds
-- to KEYS, ARGV and the reply, and what is done to them in place of the last two. All numbers are integers
-- below 2^53.
--
-- KEYS     The keys of the states, each once, all in one slot: first those of the runs, in their order;
--          then the others that are read whole; then the others.
-- ARGV[1]  The plan:
--            now        7 bytes  microseconds since the epoch, or 0 for the server's own time
--            margin     7 bytes  how long a state is kept after it has expired, in microseconds
--            operation  1 byte   0 apply, 1 peek, 2 refund, 3 reset; of quotas: 4 restore, 5 adjust, 6 read;
--                                of holds: 7 hold, 8 settle, 9 extend
--            whole      2 bytes  how many of KEYS, from the front, are to be read whole: states, and the
--                                record of a hold where that comes next
--            runs       2 bytes  how many runs there are
--            at         2 bytes  where they begin, counted from 1
--          then the limits, each a byte for the algorithm and its numbers as its file says. A limit is
--          referred to by where it begins. Then the runs:
--            count      2 bytes  how many requests it has, each of one charge at a key that no other
--                                request has; of an apply, for exactly that cost, which is not 0
--            limit      2 bytes
--            flags      1 byte
--            cost       7 bytes
--          Then the other requests:
--            charges    2 bytes  how many charges follow
--            manner     1 byte   1: fewer units than asked for will do. 2: the request has been refused
--                                elsewhere, and is only to be counted where that counts
--            units      7 bytes  the units asked for, or to be given back
--          and per charge:
--            key        2 bytes  its place in KEYS
--            limit      2 bytes
--            flags      1 byte   1: may refuse. 2: is charged when refused, too. 4: of a state that was
--                                written under other numbers the share is kept; 8: it is forgotten.
--                                16: counts what it, or the one that it watches, refuses. 32: a ledger
--                                keeps what was used, and without a state nothing is decided
--            instead    2 bytes  the charge in whose place it is judged, by its place in this request
--                                counted from 1; 0 for none
--            watches    2 bytes  the charge that it watches, likewise
--            cost       7 bytes  the cost of a unit
--            total      7 bytes  the same, with the costs of those before it that have the same key
-- ARGV[2]  For a refund: the instant of the charge to be given back. To restore or adjust: for each charge
--          three signed numbers of 8 bytes: the end of the period, what was used in it, what there is
--          beside the limit; or what to add to the latter two, and 0.
-- ARGV[3]  For a refund that must not happen twice: for how many milliseconds that is remembered, in
--          a key that comes last in KEYS.
-- Reply    One flat list of integers: the time, then for each request of the runs `remaining, reset`
--          if it is allowed at once, or -1 if its answer comes later. Then those answers, and those of
--          the other requests:
--            allowed at once    per charge `remaining, reset`
--            in detail          `-1, allowed, units` and per charge `verdict, when, remaining, reset`
--            of quotas          `-1, known, 0`, and for an adjusted or read one what is used, what there is
--                               beside the limit, and the end of the period
--            not ours           `-2` and the place in KEYS of the key that holds something else
--          A verdict is 0 allowed, 1 refused until, 2 queue full until, 3 never, 4 not before what was used
--          is restored; `when` is the delay if allowed, and the instant otherwise. `reset` is the instant at which the whole allowance is
--          back.
--
-- If the first write fails, as when the server is out of memory, nothing has changed; the later ones
-- then do not fail.

local call, pack, unpack_at, sub = redis.call, struct.pack, struct.unpack, string.sub

local plan = ARGV[1]
local now, margin, operation, whole, runs, at = unpack_at('<I7I7BI2I2I2', plan)
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local values = whole > 0 and call('MGET', unpack(KEYS, 1, whole)) or {}
local reply, filled = { now }, 1

-- How long to keep a state that expires at an instant: until then and the margin, rounded up to a power
-- of two of microseconds. Those are few enough to be spelled out once.
local spelled = {}
local function time_to_live(expires)
  local _, power = math.frexp(expires - now + margin)
  local text = spelled[power]
  if not text then
    text = string.format('%.0f', 2 ^ power / 1000 + 1)
    spelled[power] = text
  end
  return text
end

-- How many of KEYS are those of the runs.
local in_runs = 0

-- Of the requests in runs, those that are not allowed at once: for each its key, limit, flags and cost.
local postponed = {}
local function postpone(k, l, flags, cost)
  local last = #postponed
  postponed[last + 1], postponed[last + 2] = k, l
  postponed[last + 3], postponed[last + 4] = flags, cost
end
