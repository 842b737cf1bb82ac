-- Answers all requests, and writes the changed states.

-- The requests in runs that were not allowed at once.
for i = 1, #postponed, 4 do
  local k = postponed[i]
  crowded = false
  local n = prepare(k, postponed[i + 1], postponed[i + 2], 0)
  if crowded then
    report_crowded()
  elseif n then
    local cost = postponed[i + 3]
    count = 1
    keys[1], limits[1], flags[1], costs[1], totals[1] = k, n, postponed[i + 2], cost, cost
    insteads[1], watches[1] = 0, 0
    answer(1, false, false)
  else
    report_foreign(k)
  end
end

local length = #plan
while at <= length do
  local units, manner, foreign = next_request()
  if foreign then
    report_foreign(foreign)
  elseif crowded then
    report_crowded()
  else
    answer(units, manner % 2 == 1, manner >= 2)
  end
end

if writing then
  write_changes()
end

return reply
