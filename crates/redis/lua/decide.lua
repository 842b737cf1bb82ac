-- Decides a request: first all charges are judged, then all are charged or none.

-- By position of a charge in the current request.
local verdicts, whens, lefts, resets = {}, {}, {}, {}

local function reset_at(k, n)
  local special = n.quota or n.fair
  local at = special and special.resets(k, n) or expires(k, n)
  return at > now and at or now
end

-- Judges a charge for a cost. If a ledger has the usage and there is no state, the ledger must restore the
-- state first.
local function judge(i, cost)
  if flags[i] % 64 >= 32 and expires(keys[i], limits[i]) == 0 then
    return UNRESTORED, 0, 0
  end
  return decide(keys[i], limits[i], cost)
end

-- Judges all charges for `units` units. Returns three booleans: whether no enforced charge denies; whether
-- all charges allow the request without a delay; whether the state of an enforced charge must be restored
-- first.
local function decide_all(units)
  local allowed, at_once, unrestored = true, true, false
  for i = 1, count do
    local verdict, when, left = judge(i, totals[i] * units)
    verdicts[i], whens[i], lefts[i], resets[i] = verdict, when, left, nil
    if verdict ~= ALLOWED or when > 0 then
      at_once = false
      if verdict ~= ALLOWED and flags[i] % 2 == 1 then
        allowed, unrestored = false, unrestored or verdict == UNRESTORED
      end
    end
  end
  return allowed, at_once, unrestored
end

-- Charges a request, or counts its denial where denied requests count. Returns what was done with each charge. The
-- helpers are defined inside, because most calls do not need them.
local TAKE, COUNT = 1, 2
local function take(units, allowed, elsewhere)
  -- Returns whether every charge that may deny allows the request. The charge at `skipped` and the back-offs
  -- that watch it are left out.
  local function allowed_without(skipped)
    for i = 1, count do
      local may_deny = flags[i] % 2 == 1 and i ~= skipped and watches[i] ~= skipped
      if may_deny and verdicts[i] ~= ALLOWED then
        return false
      end
    end
    return true
  end

  -- Returns whether a charge denies. A charge that must be restored first does not deny.
  local function denies(i)
    return verdicts[i] ~= ALLOWED and verdicts[i] ~= UNRESTORED
  end

  -- Returns whether a back-off has a state, or room for one. Without room, strikes are not counted: a shared state would
  -- block subjects for the denials of others.
  local function counts_strikes(i, k)
    return values[k] or dirty[k] or has_room(flags[i])
  end

  -- Chooses what is done with each charge.
  local function manners(allowed, elsewhere)
    local chosen = {}
    for i = 1, count do
      local flag, denied, instead = flags[i], verdicts[i] ~= ALLOWED, insteads[i]
      local counts, strikes = flag % 4 >= 2, flag % 32 >= 16
      if verdicts[i] == UNRESTORED then
        chosen[i] = nil
      elseif limits[i].slots then
        -- Only holds take slots.
        chosen[i] = allowed and not denied and not limits[i].companion and TAKE or nil
      elseif denied and (counts or strikes) then
        chosen[i] = COUNT
      elseif strikes and watches[i] > 0 and denies(watches[i]) then
        chosen[i] = COUNT
      elseif not denied and not limits[i].companion then
        if allowed or counts or (instead > 0 and not elsewhere and allowed_without(instead)) then
          chosen[i] = TAKE
        end
      end
    end
    return chosen
  end

  local chosen = manners(allowed, elsewhere)
  for i = 1, count do
    local k, n, cost = keys[i], limits[i], costs[i] * units
    if cost > 0 and chosen[i] == TAKE then
      charge(k, n, cost)
      touch(k)
    elseif cost > 0 and chosen[i] == COUNT and (not n.companion or counts_strikes(i, k)) then
      local notes = n.fair and flags[i] % 32 >= 16
      if notes then
        n.fair.note(k, n, cost)
      else
        overdraw(k, n, cost, 0)
      end
      -- If the request is allowed, the charges that allowed it keep their verdicts.
      if not allowed or flags[i] % 2 == 0 then
        verdicts[i], whens[i] = judge(i, totals[i] * units)
      end
      if notes and verdicts[i] == ALLOWED then
        -- The note has made room. The request stays denied, and may try again in the next instant.
        verdicts[i], whens[i] = UNTIL, now + 1
      end
      touch(k)
    end
    -- Read the amount now, before later charges of the same key change it.
    local _, _, left = judge(i, 0)
    lefts[i], resets[i] = left, reset_at(k, n)
  end
  return chosen
end

local function report(units, allowed)
  reply[filled + 1], reply[filled + 2], reply[filled + 3] = -1, allowed and 1 or 0, units
  filled = filled + 3
  for i = 1, count do
    reply[filled + 1], reply[filled + 2], reply[filled + 3] = verdicts[i], whens[i], lefts[i]
    reply[filled + 4] = resets[i] or reset_at(keys[i], limits[i])
    filled = filled + 4
  end
end
