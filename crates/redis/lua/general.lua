-- From here on for requests that are not in runs, or not allowed at once. A script runs from its first
-- line on every call: what most calls do not need stands behind this line.

if at > #plan and #postponed == 0 then
  return reply
end

local floor = math.floor
local ALLOWED, UNTIL, QUEUE_FULL, NEVER, UNRESTORED = 0, 1, 2, 3, 4

-- a / b, rounded down. The quotient of two doubles may have been rounded up.
local function div(a, b)
  local quotient = floor(a / b)
  if quotient * b > a then
    return quotient - 1
  end
  return quotient
end

-- What becomes of a state that was written under other numbers, unless what is used is kept. A hold is
-- settled in those that the state is in: nothing is carried over for what was taken before they changed.
local SHARE, FORGET, AS_WRITTEN = 1, 2, 3

-- The same share of `to` as `used` is of `from`, rounded up; neither of these is 0. Where the product
-- would not be exact, it is never made: `to` is taken bit by bit, and only sums of less than 2^53 occur.
-- What is not below 2^53 itself is inexact, and larger than `to`.
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

-- Whether what is given back was taken only a moment ago, by a request that another slot has refused.
local undoing = operation == 2 and ARGV[3]

-- What is held or settled: see holds.lua.
local RESTORE, HOLD, SETTLE, EXTEND = 4, 7, 8, 9
local hold = {}

-- Each algorithm has these functions, for key number k and a limit's numbers n. Of those that only watch
-- another, `n.companion` is true: nothing is taken from them, and they bound no amount. What only quotas
-- can do is in `n.books`, and what only slots can do in `n.slots`.
-- read(l)                   the numbers of the limit at l in the plan
-- load(k, n, value, how)    takes the state; nil if it is not ours. True if it was written under
--                           other numbers, and has been carried over to these; or, to be left as
--                           written, false and those numbers
-- adopt(k, n, from, how)    carries over the state, which is in the numbers `from`; true if those are
--                           others
-- decide(k, n, cost)        verdict, when, available
-- charge(k, n, cost)        after `decide` has allowed it
-- overdraw(k, n, cost, most)  takes what may not fit, down to `most` below nothing; what was taken
-- refund(k, n, cost, at)
-- expires(k, n)             the instant from which the state equals none, 0 if there is none
-- store(k, n, at)           writes it, to expire at `at`
