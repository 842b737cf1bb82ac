-- From here on for requests that are not in runs, or not allowed at once. A script runs from its first
-- line on every call: what most calls do not need stands behind this line.

if at > #plan and #postponed == 0 then
  return reply
end

local floor = math.floor
local ALLOWED, UNTIL, QUEUE_FULL, NEVER = 0, 1, 2, 3

-- a / b, rounded down. The quotient of two doubles may have been rounded up.
local function div(a, b)
  local quotient = floor(a / b)
  if quotient * b > a then
    return quotient - 1
  end
  return quotient
end

-- Writes a state that expires at `at`.
local function keep(k, value, at)
  call('SET', KEYS[k], value, 'PX', time_to_live(at))
end

-- Each algorithm has these functions, for key number k and a limit's numbers n:
-- read(l)                   the numbers of the limit at l in the plan
-- load(k, n, value)         takes the state; nil if it is not ours. True if it was written under
--                           other numbers, and has been carried over to these
-- adopt(k, n, from)         carries over the state, which is in the numbers `from`
-- decide(k, n, cost)        verdict, when, available
-- charge(k, n, cost)        after `decide` has allowed it
-- charge_denied(k, n, cost)
-- refund(k, n, cost, at)
-- expires(k, n)             the instant from which the state equals none, 0 if there is none
-- store(k, n, at)           writes it, to expire at `at`
