-- What the charges of a request say to it, and taking what is allowed: look at all, then take all or none.

-- By charge of the request at hand.
local verdicts, whens, lefts, resets = {}, {}, {}, {}

local function reset_at(k, n)
  local at = n.books and n.books.resets(k) or expires(k, n)
  return at > now and at or now
end

-- What a charge says to a cost. Where a ledger keeps what was used, nothing without a state.
local function judge(i, cost)
  if flags[i] >= 32 and expires(keys[i], limits[i]) == 0 then
    return UNRESTORED, 0, 0
  end
  return decide(keys[i], limits[i], cost)
end

-- What each charge says to so many units: whether none that may refuse does, whether all allow it at
-- once, and whether one that may refuse has to be restored.
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

-- Takes what a request is allowed to take, and counts what it is refused where that counts. Returns what
-- was done with each charge. What only this needs is made only then: most requests are simply taken.
local TAKE, COUNT = 1, 2
local function take(units, allowed, elsewhere)
  -- Whether every charge that may refuse allows the request, that at one place and those that watch it
  -- aside.
  local function allowed_but_for(place)
    for i = 1, count do
      local may_refuse = flags[i] % 2 == 1 and i ~= place and watches[i] ~= place
      if may_refuse and verdicts[i] ~= ALLOWED then
        return false
      end
    end
    return true
  end

  -- Whether a charge says no, and knows why.
  local function refuses(i)
    return verdicts[i] ~= ALLOWED and verdicts[i] ~= UNRESTORED
  end

  -- What is done with each charge of a request that is not simply taken by all.
  local function manners(allowed, elsewhere)
    local chosen = {}
    for i = 1, count do
      local flag, denied, instead = flags[i], verdicts[i] ~= ALLOWED, insteads[i]
      local counts, strikes = flag % 4 >= 2, flag % 32 >= 16
      if verdicts[i] == UNRESTORED then
        chosen[i] = nil
      elseif limits[i].slots then
        -- Taken by a hold, and by nothing else.
        chosen[i] = allowed and not denied and not limits[i].companion and TAKE or nil
      elseif denied and (counts or strikes) then
        chosen[i] = COUNT
      elseif strikes and watches[i] > 0 and refuses(watches[i]) then
        chosen[i] = COUNT
      elseif not denied and not limits[i].companion then
        if allowed or counts or (instead > 0 and not elsewhere and allowed_but_for(instead)) then
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
    elseif cost > 0 and chosen[i] == COUNT then
      overdraw(k, n, cost, 0)
      -- Who has let the request pass is not to be told otherwise.
      if not allowed or flags[i] % 2 == 0 then
        verdicts[i], whens[i] = judge(i, totals[i] * units)
      end
      touch(k)
    end
    -- Later charges of the same key are not to be seen yet.
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
