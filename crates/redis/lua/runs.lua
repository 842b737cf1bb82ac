-- The fast path for runs: decides the requests that all their charges allow at once, and writes their states. The other
-- requests of the runs are postponed to the general path. `meter_column.lua` or `fixed_window_column.lua`, or both,
-- stand in place of the line "-- The column.": the code that decides or writes a column. It is not a function, because
-- a function with so many upvalues would cost each call 0.7 us.
--
-- new_at, new_part  by key: its state after the charges so far. For fixed windows, `new_at` is the usage
-- failed, fails     which requests are not allowed at once, by their position in the run, and how many
-- values_needed     whether later runs, or the general path, may need the states that this run writes

if in_runs > 0 then
  local absent
  for k = 1, in_runs do
    if not values[k] then
      absent = absent or {}
      absent[#absent + 1] = KEYS[k]
    end
  end
  if absent then
    if whole > 1 and call('EXISTS', unpack(absent)) > 0 then
      -- MGET does not show a value that is not a string. No state is an empty string.
      for k = 1, in_runs do
        if not values[k] and call('EXISTS', KEYS[k]) == 1 then
          values[k] = ''
        end
      end
    end
    if not most_keys then
      most_keys, most_anonymous = unpack_at('<I7I7', plan, BOUNDS)
    end
    stored = most_anonymous < NO_BOUND and call('DBSIZE') or 0
  end
end

for run = 1, runs do
  local count, charges, columns = unpack_at('<I2I2', plan, at)
  local started, stored_before = filled + 1, stored
  local fails, known, failed, new_at, new_part = 0, 0, nil, nil, nil
  -- If each request has one charge, with a key of its own, one pass decides and writes.
  --
  -- Otherwise the first pass only decides. It finds the requests that are not allowed at once. Other requests of the run
  -- may have found the units of such a request taken, so a second pass decides without them. It allows every request
  -- that the first pass has allowed: it never takes more before that request. The last pass writes.
  local decides, writes, values_needed = true, false, false
  repeat
    at = columns
    if decides then
      if fails > 0 then
        for i = filled, started, -1 do
          reply[i] = nil
        end
      end
      known, filled, stored = fails, started, stored_before
    end

    for c = 1, charges do
      local l, flags, cost, first
      l, flags, cost, first, at = unpack_at('<I2BI7I2', plan, at)
      if c == 1 and decides then
        if charges == 1 and first > 0 then
          writes, values_needed = true, run < runs or postponed or at <= #plan
        else
          new_at, new_part = {}, {}
        end
      end
      local room = flags >= 64 and most_anonymous or most_keys
      -- The column.
      if first == 0 then
        at = at + 2 * count
      end
    end

    local done = writes
    if fails == count and not done then
      -- There is nothing to decide again, and nothing to write.
      for i = filled, started + 1, -1 do
        reply[i] = nil
      end
      filled, stored, done = started, stored_before, true
    elseif decides and fails == known then
      decides, writes = false, true
      values_needed = run < runs or fails > 0 or postponed or at <= #plan
    end
  until done

  reply[started] = fails
  if fails > 0 then
    postponed = postponed or {}
    postponed[#postponed + 1] = { columns, count, charges, failed }
    for r = 1, count do
      if failed[r] then
        filled = filled + 1
        reply[filled] = r
      end
    end
  end
end
