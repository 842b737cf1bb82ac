-- Decides requests. This file opens the script, `requests.lua` closes it, and between the two stand
-- the algorithms that the call needs, each in a file of its own with the formulas of the Rust file
-- of the same name. All numbers are integers below 2^53.
--
-- KEYS     The keys of the states, each once, all in one slot.
-- ARGV[1]  The time in microseconds since the epoch, or 0 for the server's own.
-- ARGV[2]  How long a state is kept after it has expired, in microseconds.
-- ARGV[3]  The operation: 0 apply, 1 peek, 2 refund, 3 reset.
-- ARGV[4]  The limits, one record after the other: a byte for the algorithm, then its numbers as
--          its file says.
-- ARGV[5]  The requests, one record after the other:
--            charges    2 bytes  how many charges follow
--            up to      1 byte   1 if fewer units than asked for will do
--            units      7 bytes  the units asked for, or to be given back
--            charged at 7 bytes  the instant of the charge to be given back
--          and per charge:
--            key        2 bytes  its place in KEYS
--            limit      2 bytes  its place among the limits
--            flags      1 byte   1: may refuse. 2: is charged when refused, too
--            cost       7 bytes  the cost of a unit
--            total      7 bytes  the same, with the costs of those before it that have the same key
--          Or a run of plain checks, of one charge each, that differ in nothing but their keys, which
--          follow each other and are not asked for before:
--            0          2 bytes
--            length     2 bytes  how many
--            key        2 bytes  the place of the first
--            limit      2 bytes
--            flags      1 byte
--            cost       7 bytes  the cost of all units
-- ARGV[6]  How many of KEYS, from the front, are states to be read whole.
-- ARGV[7]  For a refund that must not happen twice: for how many milliseconds that is remembered, in
--          a key that comes last in KEYS.
-- Reply    One flat list of integers: the time, and then per request
--            remaining, reset                  a plain check that is allowed at once; or
--            -1, allowed, units                and per charge `verdict, when, remaining, reset`; or
--            -2, key                           the place of a key that holds something not ours
--          A verdict is 0 allowed, 1 refused until, 2 queue full until, 3 never; `when` is the
--          delay if allowed, and the instant otherwise. `reset` is the instant at which the whole
--          allowance is back.
--
-- Nothing is written before everything is decided. If the first write fails, as when the server is
-- out of memory, nothing has changed; the later ones then do not fail.

local call, floor, sub = redis.call, math.floor, string.sub
local pack, unpack_at = struct.pack, struct.unpack
local ALLOWED, UNTIL, QUEUE_FULL, NEVER = 0, 1, 2, 3

local now = tonumber(ARGV[1])
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local margin = tonumber(ARGV[2])

-- The numbers of each limit.
local numbers = {}

-- a / b, rounded down. The quotient of two doubles may have been rounded up.
local function div(a, b)
  local quotient = floor(a / b)
  if quotient * b > a then
    return quotient - 1
  end
  return quotient
end

-- Writes a state that expires at `at`. The time it is kept is that until then and the margin,
-- rounded up to a quarter, a sixteenth and so on of `window`: few enough to be spelled out once.
local spelled = {}
local function keep(k, value, at, window)
  local span, next_span = window, window / 4
  while at - now <= next_span and next_span > 1000 do
    span, next_span = next_span, next_span / 4
  end
  -- The clock may have gone back.
  if span < at - now then
    span = at - now
  end
  local text = spelled[span]
  if not text then
    text = string.format('%.0f', floor((span + margin) / 1000) + 1)
    spelled[span] = text
  end
  call('SET', KEYS[k], value, 'PX', text)
end

-- Each algorithm has these functions, for key number k under limit number l:
-- read(l, at)               takes the numbers of the limit from ARGV[4]; returns where they end
-- load(k, l, value)         takes the state; nil if it is not ours. True if it was written under
--                           other numbers, and has been carried over to these
-- adopt(k, l, from)         carries over the state, which is in the numbers of limit `from`
-- decide(k, l, cost)        verdict, when, available
-- charge(k, l, cost)        after `decide` has allowed it
-- charge_denied(k, l, cost)
-- refund(k, l, cost, at)
-- expires(k, l)             the instant from which the state equals none, 0 if there is none
-- store(k, l, at)           writes it, to expire at `at`
