-- The general path: for requests that are not in a run, and for requests in runs that were not allowed at
-- once. Every call runs a script from its first line. So the code that most calls do not need comes after
-- these lines, which end the other calls. It is in a function of its own, because a call clears the room that all local
-- variables of a function may need.

if at > #plan and not postponed then
  return reply
end

return (function()

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

-- How to carry over a state that was written under other numbers. By default its usage is kept. A refund, a report and
-- the end of a hold carry nothing over: with AS_WRITTEN, a state stays in the numbers that it was written under.
local SHARE, FORGET, AS_WRITTEN = 1, 2, 3

-- Returns `used / from * to`, rounded up; neither `from` nor `to` is 0. If the product would not be exact,
-- the function multiplies bit by bit, so that all sums stay below 2^53. A result of 2^53 or more is inexact,
-- and larger than `to`.
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

-- Returns the number at `place` of a text, and the place after it; or nil if there is no number. A number is in groups
-- of 7 bits, the lowest first; all its bytes but the last have 128 added.
local function number_at(text, place)
  local sum, factor = 0, 1
  while factor <= 2 ^ 49 do
    local byte = string.byte(text, place)
    if not byte then
      return nil
    end
    sum, factor, place = sum + byte % 128 * factor, factor * 128, place + 1
    if byte < 128 then
      return sum, place
    end
  end
end

-- Returns whether there is room for one more state, and counts it as made.
local function has_room(flags)
  if not most_keys then
    most_keys, most_anonymous = unpack_at('<I7I7', plan, BOUNDS)
  end
  local most = flags >= 64 and most_anonymous or most_keys
  if most == NO_BOUND then
    return true
  end
  stored = stored or call('DBSIZE')
  if stored >= most then
    return false
  end
  stored = stored + 1
  return true
end

-- Writes a state that expires at `at`.
local function keep(k, value, at)
  call('SET', KEYS[k], value, 'PX', (time_to_live(at)))
end

-- Whether a refund undoes a charge that was made a moment ago, because another cluster slot has denied the
-- request.
local undoing = operation == 2 and ARGV[3]

-- The hold of this call: see holds.lua.
local APPLY, PEEK, REFUND, RESTORE, HOLD, SETTLE, EXTEND, REPORT = 0, 1, 2, 4, 7, 8, 9, 10
local hold = {}

-- Whether the operation decides for a subject without a state: with a new state, or with the shared state.
local makes_states = operation == APPLY or operation == PEEK or operation == HOLD or operation == REPORT

-- Whether states stay in the numbers that they were written under.
local stays = operation == REFUND or operation == SETTLE or operation == REPORT

-- Each algorithm has the functions below, for key number k and the numbers n of a limit.
--
-- n.head       the bytes that a state begins with: the numbers that it was written under. The same numbers give the
--              same head. Some algorithms have no head
-- n.companion  true for a limit that nothing is charged to in this call: a back-off, or slots outside of a hold. Such
--              a limit does not bound an amount
-- n.quota      the functions that only quotas have
-- n.slots      the functions that only concurrency limits have
-- n.fair       the functions that only fair buckets have
--
-- read(l)                     returns the numbers of the limit at position l of the plan
-- load(k, n, value, how)      reads the state. Returns nil if another program wrote it; true if it was
--                             written under other numbers and was carried over; false otherwise. AS_WRITTEN
--                             leaves the state as it is, and also returns its numbers if they differ from n
-- adopt(k, n, from, how)      carries the state over from the numbers `from` to n. Called if the heads differ, or if
--                             n has no head. Returns whether the state was carried over
-- decide(k, n, cost)          returns verdict, when, available
-- charge(k, n, cost)          charges a cost that `decide` has allowed
-- overdraw(k, n, cost, most)  charges a cost that may not fit, down to `most` below zero; returns what was charged
-- refund(k, n, cost, at)      refunds a charge that was made at the time `at`
-- expires(k, n)               returns the time from which the state can be dropped without any effect; 0 if there is
--                             no state
-- store(k, n, at)             writes the state, to expire at `at`
