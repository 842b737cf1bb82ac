-- Answers all requests, and writes the changed states.

local function answer_or_report(units, manner, foreign)
  if foreign then
    report_foreign(foreign)
  elseif crowded then
    report_crowded()
  else
    answer(units, manner % 2 == 1, manner >= 2)
  end
end

-- The requests in runs that were not allowed at once.
for p = 1, postponed and #postponed or 0 do
  local columns, members, charges, is_postponed = unpack(postponed[p])
  for r = 1, members do
    if is_postponed[r] then
      local place, foreign = columns, nil
      count, crowded = charges, false
      for i = 1, charges do
        local l, first, k
        l, flags[i], costs[i], first, place = unpack_at('<I2BI7I2', plan, place)
        k = first + r - 1
        if first == 0 then
          k = unpack_at('<I2', plan, place + 2 * r - 2)
          place = place + 2 * members
        end
        totals[i], insteads[i], watches[i] = costs[i], 0, 0
        foreign = prepare_charge(i, k, l, 0) or foreign
      end
      answer_or_report(1, 0, foreign)
    end
  end
end

local length = #plan
while at <= length do
  answer_or_report(next_request())
end

if writing then
  write_changes()
end

return reply
