-- The fast path for runs of token buckets, GCRA, and leaky buckets that do not delay requests. The formulas
-- are those of `admits` and `charge` in meter.rs. `meter.lua` describes limits and states.

for _ = 1, runs do
  local count, l, flags, cost
  count, l, flags, cost, at = unpack_at('<I2I2BI7', plan, at)
  local kind, tick, capacity, token, rate, size, first = unpack_at('<BI2I7I7I4B', plan, l + 1)
  local numbers = sub(plan, first, first + size - 1)
  local format, head = '<BI7', 8
  if rate > 1 then
    format, head = '<BI7I4', 12
  end
  local here, units = (now - now % tick) / tick, cost * token
  local most = capacity * token - units

  for k = in_runs + 1, in_runs + count do
    local value, done = values[k], nil
    local from, whole_at, part = kind, here, 0
    if value then
      if #value == head + size and sub(value, head + 1) == numbers then
        from, whole_at, part = unpack_at(format, value)
      else
        from = nil
      end
      if rate == 1 or whole_at < here then
        part = 0
      end
      if whole_at < here then
        whole_at = here
      end
    end

    local missing = (whole_at - here) * rate + part
    if from == kind and missing <= most then
      part = part + units
      local rest = part % rate
      whole_at = whole_at + (part - rest) / rate
      local reset = (rest > 0 and whole_at + 1 or whole_at) * tick
      local text, lasts = pack(format, kind, whole_at, rest) .. numbers, time_to_live(reset)
      if value then
        done = call('SET', KEYS[k], text, 'PX', lasts)
      else
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
          done = call('SET', KEYS[k], text, 'PX', lasts, 'NX')
          stored = stored and stored + 1
        end
      end
      if done then
        local left = most - missing
        reply[filled + 1], reply[filled + 2] = (left - left % token) / token, reset
        filled = filled + 2
      end
    end
    if not done then
      postpone(k, l, flags, cost)
      filled = filled + 1
      reply[filled] = -1
    end
  end
  in_runs = in_runs + count
end
