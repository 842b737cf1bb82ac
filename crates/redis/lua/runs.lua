-- The fast path for runs: decides the requests that all their charges allow at once, and writes their states. The other
-- requests of the runs are postponed to the general path. Before this file, `column` is defined: a function that
-- decides or writes a column.
--
-- column(l, flags, cost, first, count, decides, writes): the numbers of the column in the plan, how many requests the
-- run has, and what to do. If the positions of the keys are in the plan, `at` is where they begin.
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
    if call('EXISTS', unpack(absent)) > 0 then
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
  local started, before = filled + 1, stored
  failed, fails, filled = {}, 0, started

  local l, flags, cost, first, next_column = unpack_at('<I2BI7I2', plan, columns)
  if charges == 1 and first > 0 then
    -- Each request has one charge, with a key of its own.
    at = next_column
    values_needed = run < runs or postponed or at <= #plan
    column(l, flags, cost, first, count, true, true)
  else
    -- The first pass finds the requests that are not allowed at once. Other requests of the run may have found the
    -- units of such a request taken, so a second pass leaves these requests out. It allows every request that the first
    -- pass has allowed: it never takes more before that request.
    repeat
      local known = fails
      for i = filled, started, -1 do
        reply[i] = nil
      end
      new_at, new_part = {}, {}
      filled, at, stored = started, columns, before
      for _ = 1, charges do
        l, flags, cost, first, at = unpack_at('<I2BI7I2', plan, at)
        column(l, flags, cost, first, count, true, false)
        at = first == 0 and at + 2 * count or at
      end
    until fails == known
    values_needed = run < runs or fails > 0 or postponed or at <= #plan
    at = columns
    for _ = 1, charges do
      l, flags, cost, first, at = unpack_at('<I2BI7I2', plan, at)
      column(l, flags, cost, first, count, false, true)
      at = first == 0 and at + 2 * count or at
    end
  end

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
