-- The fast path for runs of fixed windows. `fixed_window.lua` describes limits and states.

for _ = 1, runs do
  local count, l, flags, cost
  count, l, flags, cost, at = unpack_at('<I2I2BI7', plan, at)
  local head = sub(plan, l + 1, l + 15)
  local window, limit = unpack_at('<I7I7', head, 2)
  local ending = now - now % window + window
  -- How states of the current window begin.
  local running, lasts = head .. pack('<I7', ending), time_to_live(ending)

  for k = in_runs + 1, in_runs + count do
    local value, used, done = values[k], 0, nil
    local is_running = value and #value == 29 and sub(value, 1, 22) == running
    if is_running then
      used = unpack_at('<I7', value, 23)
    end
    used = used + cost
    if used > limit then
      done = false
    elseif is_running then
      -- SETRANGE keeps the expiry of the key.
      done = call('SETRANGE', KEYS[k], '22', pack('<I7', used))
    elseif not value then
      -- The same as `has_room` in general.lua. Most calls end before that function is defined.
      if not most_keys then
        most_keys, most_anonymous = unpack_at('<I7I7', plan, BOUNDS)
      end
      local most = flags >= 64 and most_anonymous or most_keys
      if most < NO_BOUND then
        stored = stored or call('DBSIZE')
      end
      if most == NO_BOUND or stored < most then
        -- NX: the key may hold a value that is not a string. MGET does not show such a value, and SET must
        -- not replace it.
        done = call('SET', KEYS[k], running .. pack('<I7', used), 'PX', lasts, 'NX')
        stored = stored and stored + 1
      end
    elseif #value == 29 and sub(value, 1, 15) == head and unpack_at('<I7', value, 16) < ending then
      done = call('SET', KEYS[k], running .. pack('<I7', used), 'PX', lasts)
    end
    if done then
      reply[filled + 1], reply[filled + 2] = limit - used, ending
      filled = filled + 2
    else
      postpone(k, l, flags, cost)
      filled = filled + 1
      reply[filled] = -1
    end
  end
  in_runs = in_runs + count
end
