-- For requests that are not in runs, or not allowed at once. Every call runs a script from its first line, so
-- code that most calls do not need comes after this line.

if at > #plan and #postponed == 0 then
  return reply
end

local floor = math.floor
local ALLOWED, UNTIL, QUEUE_FULL, NEVER, UNRESTORED = 0, 1, 2, 3, 4

-- Returns a / b, rounded down. The quotient of two doubles may be rounded up.
local function div(a, b)
  local quotient = floor(a / b)
  if quotient * b > a then
    return quotient - 1
  end
  return quotient
end

-- How a state that was written under other numbers is carried over; by default its usage is kept. A settled
-- hold uses AS_WRITTEN: the state stays in the numbers that it was written under, and nothing is carried
-- over.
local SHARE, FORGET, AS_WRITTEN = 1, 2, 3

-- Returns `used / from * to`, rounded up; neither `from` nor `to` is 0. If the product would not
-- be exact, `to` is taken bit by bit, with sums below 2^53 only. A result of 2^53 or more is inexact, and larger
-- than `to`.
local function same_share(used, from, to)
  local whole = div(used, from)
  local rest = used - whole * from
  if rest * to < 2 ^ 53 then
    return whole * to - div(-rest * to, from)
  end
  local quotient, remainder, bit, left = 0, 0, 2 ^ 52, to
  while bit >= 1 do
    quotient = quotient * 2
    if remainder >= from - remainder then
      quotient, remainder = quotient + 1, remainder - (from - remainder)
    else
      remainder = remainder * 2
    end
    if left >= bit then
      left = left - bit
      if remainder >= from - rest then
        quotient, remainder = quotient + 1, remainder - (from - rest)
      else
        remainder = remainder + rest
      end
    end
    bit = bit / 2
  end
  return whole * to + quotient + (remainder > 0 and 1 or 0)
end

-- Writes a state that expires at `at`.
local function keep(k, value, at)
  call('SET', KEYS[k], value, 'PX', time_to_live(at))
end

-- Whether a refund undoes a charge of a moment ago, because another cluster slot has denied the request.
local undoing = operation == 2 and ARGV[3]

-- The hold of this call: see holds.lua.
local RESTORE, HOLD, SETTLE, EXTEND = 4, 7, 8, 9
local hold = {}

-- Each algorithm has these functions, for key number k and the numbers n of a limit. `n.head`, if there is
-- one, is the same for the same numbers. `n.companion` is true for a limit that nothing is charged to in this
-- call: a back-off, or slots outside of a hold. Such a limit does not bound an amount. `n.quota` has the
-- functions that only quotas have, and `n.slots` those that only concurrency limits have.
-- read(l)                     returns the numbers of the limit at position l of the plan
-- load(k, n, value, how)      reads the state. Returns nil if another program wrote it; true if it was
--                             written under other numbers and was carried over; false otherwise. AS_WRITTEN
--                             leaves the state as it is, and also returns its numbers if they differ from n
-- adopt(k, n, from, how)      carries over the state from the numbers `from`, whose head is another; returns true if
--                             those numbers differ
-- decide(k, n, cost)          returns verdict, when, available
-- charge(k, n, cost)          charges, after `decide` has allowed it
-- overdraw(k, n, cost, most)  charges a cost that may not fit, down to `most` below zero; returns what was charged
-- refund(k, n, cost, at)      refunds a charge of time `at`
-- expires(k, n)               returns the time from which the state equals no state, 0 if there is none
-- store(k, n, at)             writes the state, to expire at `at`
