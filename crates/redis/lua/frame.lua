-- Decides requests. A script is this file, the fast path for runs if the algorithms have one (`runs.lua` with
-- `meter_column.lua` and `fixed_window_column.lua`), `general.lua`, the algorithms that the call needs, `states.lua`,
-- `decide.lua`, `requests.lua` and `run.lua`. Each algorithm is a file with the formulas of the Rust file of the
-- same name. All numbers are integers below 2^53. Positions count from 1.
--
-- Reports have `report.lua` in place of `requests.lua` and `run.lua`: see there.
-- Calls about holds have `holds.lua` and other files in place of `requests.lua` and `run.lua`. `holds.lua`
-- describes what these calls add to KEYS, ARGV and the reply.
--
-- A run is a list of requests that differ only in their keys. The charges at one place in these requests, which differ
-- only in their keys too, are a column. One loop decides a column.
--
-- KEYS     The keys of the states, each once, all in one cluster slot: first the keys of the runs, in order; then the
--          other keys with states that are read whole, and the marks of clients of fair buckets; then the keys of
--          sliding logs and of slots, which are not read whole.
-- ARGV[1]  The plan:
--            now        7 bytes  microseconds since the epoch, or 0 for the time of the server
--            margin     7 bytes  how long a state is kept after it has expired, in microseconds
--            operation  1 byte   0 apply, 1 peek, 2 refund, 3 reset; for quotas: 4 restore, 5 adjust, 6 read;
--                                for holds: 7 hold, 8 settle, 9 extend; 10 report. 16 is added if the server may be out of
--                                memory: see `full` below
--            whole      2 bytes  how many of KEYS, from the front, are read whole: states, and the record of a
--                                hold if it follows them
--            runs       2 bytes  how many runs there are
--            in_runs    2 bytes  how many of KEYS belong to runs
--            at         2 bytes  the position in the plan where the runs begin
--            most       7 bytes  no new state is made while the server has this many keys or more
--            anonymous  7 bytes  the same for anonymous subjects; at most `most`
--          then the limits: one byte for the algorithm, and the numbers that its file describes. A limit is
--          referred to by its position in the plan. Then the runs:
--            count      2 bytes  how many requests the run has
--            charges    2 bytes  how many charges each of these requests has
--          and for each charge, that is for each column:
--            limit      2 bytes
--            flags      1 byte   as below
--            cost       7 bytes  the cost of all units; not 0
--            first      2 bytes  the position of the first key, if the requests have different keys, in order; or 0,
--                                and then the position of each request's key (2 bytes each)
--          A key is in one column of a run at most, but may be in several runs.
--          Then the other requests:
--            charges    2 bytes  how many charges follow
--            manner     1 byte   1: fewer units than asked for are acceptable. 2: another cluster slot has denied
--                                the request, so it is charged only where denied requests are charged
--            units      7 bytes  the units to charge or to refund
--          and for each charge:
--            key        2 bytes  its position in KEYS
--            shared     2 bytes  the position in KEYS of the state that new subjects of the rule share; 0 if it is
--                                not among KEYS
--            limit      2 bytes
--            flags      1 byte   1: may deny. 2: denied requests are charged too. For a state that was written
--                                under other numbers, 4: its share is kept, 8: it is dropped. 16: a back-off that
--                                counts its own denials and those of the charge that it watches, or a fair bucket
--                                that notes which clients it denies. 32: a ledger has
--                                the usage; without a state, the ledger must restore the state first. 64: the subject
--                                is anonymous
--            instead    2 bytes  the position in this request of the charge that it may replace; 0 for none
--            watches    2 bytes  the position in this request of the charge that it watches; 0 for none
--            cost       7 bytes  the cost of a unit
--            total      7 bytes  the cost of a unit, plus the costs of earlier charges with the same key
-- ARGV[2]  For a refund: the time of the charge. For restore and adjust: three signed numbers of 8 bytes for each
--          charge. Restore: the end of the period, the usage, the amount beside the limit. Adjust: what to add to
--          the usage, what to add to the amount beside the limit, and 0.
-- ARGV[3]  For a refund that must not happen twice: for how many milliseconds the last of KEYS remembers it.
-- Returns  One flat list of integers: the time. Then for each run: how many of its requests are not allowed at once; for
--          each column, `remaining, reset` for each request that is allowed at once; the positions in the run of the
--          requests that are not. Then the answers to those requests, and to the requests outside of runs:
--            allowed at once    for each charge `remaining, reset`
--            in detail          `-1, allowed, units`, and for each charge `verdict, when, remaining, reset`
--            for quotas         `-1, known, 0`; for adjust and read also the usage, the amount beside the limit,
--                               and the end of the period
--            for a report       `-1, known, 0`, the level, which may be below zero, the excess, and the reset
--            foreign value      `-2`, and the position in KEYS of a key that another program has written
--            no room            `-3`: a state is missing, there is no room for it, and the shared state is not among
--                               KEYS. Nothing was decided
--            shared state       `-4`, and the position of a charge that the shared state decided; then the answer
--          A verdict is 0 allowed, 1 denied until, 2 queue full until, 3 never, 4 not before the usage is restored;
--          `when` is the delay if allowed, and the time otherwise. `reset` is the time at which the whole allowance
--          is available again.
--
-- If the first write fails, for example because the server is out of memory, nothing has changed. If the first write
-- succeeds, the later writes do not fail. So a call that fails for lack of memory is sent again, with 16 added to the
-- operation. Then states that exist are written as usual, and no new states are made except shared states.

local call, pack, unpack_at, sub = redis.call, struct.pack, struct.unpack, string.sub

local plan = ARGV[1]
local now, margin, operation, whole, runs, in_runs, at = unpack_at('<I7I7BI2I2I2I2', plan)
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- The only key of a run is read by GET, which tells a value that is not a string from an absent one: such a value is an
-- empty string here, which no state is. In the result of MGET, a value that is not a string is as false as an absent one.
local values
if whole == 1 and in_runs == 1 then
  local value = redis.pcall('GET', KEYS[1])
  values = { type(value) ~= 'table' and value or value and '' }
else
  values = whole > 0 and call('MGET', unpack(KEYS, 1, whole)) or {}
end
-- With room for the answer to one request that is in a run.
local reply, filled = { now, nil, nil, nil }, 1

-- Returns for how many milliseconds to keep a state that expires at `expires`, and the grid of this expiry.
--
-- Most writes do not have to set a new expiry. For this, states expire at points of a grid: the state is kept at least
-- until the first point of the grid that is not before `expires`, and then for the margin. As long as `expires` does
-- not pass that point, the expiry of the key stays. A grid has 2^(10 + g) microseconds; g is from 0 to 31, so that
-- states are kept at most twice as long as necessary. The time is rounded up to a multiple of the grid. There are few
-- such times, so each is formatted once.
local spelled
local function time_to_live(expires)
  local lasts = expires - now + margin
  local _, power = math.frexp(lasts)
  power = power < 12 and 10 or power > 43 and 41 or power - 2
  local grid = 2 ^ power
  lasts = lasts - lasts % -grid + grid
  spelled = spelled or {}
  local text = spelled[lasts]
  if not text then
    text = string.format('%.0f', lasts / 1000 + 1)
    spelled[lasts] = text
  end
  return text, power - 10
end

-- Whether the server is out of memory. A server that is out of memory rejects the first write of a script if the
-- command may need memory. If the first write is a command that never needs memory, the server accepts all later
-- writes. SETRANGE without bytes and GETEX without options are such commands, and change nothing.
local full = false
-- The bounds of the plan on keys, and how many keys the server has: nil until a new state needs them.
local NO_BOUND, BOUNDS = 9007199254740991, 24
local most_keys, most_anonymous, stored
if operation >= 16 then
  operation = operation - 16
  local tried = redis.pcall('SETRANGE', KEYS[1], 0, '')
  full = type(tried) == 'table' and string.find(tried.err, 'OOM', 1, true) ~= nil
  if full then
    redis.pcall('GETEX', KEYS[1])
    most_keys, most_anonymous = 0, 0
  end
end

-- The runs with requests that are not allowed at once: where the columns of a run begin in the plan, the numbers of
-- requests and charges, and the positions of those requests.
local postponed
