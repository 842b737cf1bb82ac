-- Reports usage that was admitted without this server: charges it even if the limit does not allow it. Each request has
-- one charge. `script.rs` adds the function `level` of the algorithm.

-- The furthest that usage may be above a limit: `MAX_AMOUNT` of units.rs.
local DEEPEST = 4503599627370495

local function answer(units)
  local k, n, cost = keys[1], limits[1], math.min(costs[1] * units, 2 * DEEPEST)
  local known = flags[1] % 64 < 32 or expires(k, n) > 0
  -- The answer is in the numbers of the caller.
  local other = others[1]
  local before = other and level(converted(1), other) or level(k, n)
  if known and cost > 0 then
    overdraw(k, n, cost, DEEPEST)
    touch(k)
  end
  if other then
    k, n = converted(1), other
  end
  local excess = math.max(cost - math.max(before, 0), 0)
  reply[filled + 1], reply[filled + 2], reply[filled + 3] = -1, known and 1 or 0, 0
  reply[filled + 4], reply[filled + 5], reply[filled + 6] = level(k, n), excess, reset_at(k, n)
  filled = filled + 6
end

while at <= #plan do
  local units, _, foreign = next_request()
  if foreign then
    reply[filled + 1], reply[filled + 2] = -2, foreign
    filled = filled + 2
  elseif crowded then
    filled = filled + 1
    reply[filled] = -3
  else
    answer(units)
  end
end
write_changes()

return reply
