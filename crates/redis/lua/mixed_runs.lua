-- For calls with several algorithms: chooses the column function by the byte at the start of the limit.

local function column(l, flags, cost, first, count, decides, writes)
  if string.byte(plan, l) == 3 then
    return fixed_window_column(l, flags, cost, first, count, decides, writes)
  end
  return meter_column(l, flags, cost, first, count, decides, writes)
end
