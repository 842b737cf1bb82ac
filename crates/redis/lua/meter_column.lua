-- Columns of token buckets, GCRA, and leaky buckets that do not delay requests. The formulas are those of `admits` and
-- `charge` in meter.rs. `meter.lua` describes limits and states, and `runs.lua` the variables.

local base, tick, capacity, token, rate, size, from = unpack_at('<BI2I7I7I4B', plan, l + 1)
local numbers, has_part = sub(plan, from, from + size - 1), rate > 1
local format, head = '<BI7', 8
if has_part then
  format, head = '<BI7I4', 12
end
local here, units = (now - now % tick) / tick, cost * token
local most = capacity * token - units

for r = 1, count do
  if fails == 0 or not failed[r] then
    local k = first + r - 1
    if first == 0 then
      k = unpack_at('<I2', plan, at + 2 * r - 2)
    end
    -- The state as it is stored, and after the charges so far.
    local value, kind, before, rest = values[k], nil, nil, 0
    local whole_at, part

    if not decides then
      whole_at, part = new_at[k], has_part and new_part[k] or 0
      if whole_at and value then
        kind, before, rest = unpack_at(format, value)
      end
      new_at[k] = nil
    else
      if not writes then
        whole_at, part = new_at[k], has_part and new_part[k] or 0
      end
      if whole_at then
        -- An earlier request of the run has the same key.
      elseif not value then
        if most >= 0 and stored < room then
          stored = stored + 1
          whole_at, part = here, 0
        end
      elseif #value == head + size and sub(value, head + 1) == numbers then
        kind, before, rest = unpack_at(format, value)
        if kind >= 128 and kind % 4 == base % 4 or kind == base - 31 then
          whole_at, part = before, has_part and rest or 0
          if whole_at < here then
            whole_at, part = here, 0
          end
        end
      end
      local missing = whole_at and (whole_at - here) * rate + part
      if missing and missing <= most then
        if has_part then
          local sum = part + units
          part = sum % rate
          whole_at = whole_at + (sum - part) / rate
        else
          whole_at = whole_at + units
        end
        local left = most - missing
        reply[filled + 1] = (left - left % token) / token
        reply[filled + 2] = (part > 0 and whole_at + 1 or whole_at) * tick
        filled = filled + 2
        if not writes then
          new_at[k] = whole_at
          if has_part then
            new_part[k] = part
          end
        end
      else
        whole_at = nil
        failed = failed or {}
        failed[r], fails = true, fails + 1
      end
    end

    if writes and whole_at then
      local reset, kept = (part > 0 and whole_at + 1 or whole_at) * tick, 0
      if kind and kind >= 128 then
        -- The point of the grid until which the key is kept.
        kept = (has_part and rest > 0 and before + 1 or before) * tick
        kept = kept - kept % -2 ^ ((kind - kind % 4) / 4 - 22)
      end
      if reset <= kept then
        -- SETRANGE keeps the expiry of the key.
        local text = pack(has_part and '<I7I4' or '<I7', whole_at, part)
        call('SETRANGE', KEYS[k], '1', text)
        if values_needed then
          values[k] = sub(value, 1, 1) .. text .. numbers
        end
      else
        local lasts, grid = time_to_live(reset)
        value = pack(format, base + 4 * grid, whole_at, part) .. numbers
        call('SET', KEYS[k], value, 'PX', lasts)
        values[k] = value
      end
    end
  end
end
