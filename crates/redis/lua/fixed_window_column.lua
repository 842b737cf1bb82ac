-- Columns of fixed windows. `fixed_window.lua` describes limits and states, and `runs.lua` the variables.

local window, limit, number_format, format, size, length, from = unpack_at('<I7I7c3c3BB', plan, l + 1)
local head = sub(plan, from, from + size - 1)
local ending, most = now - now % window + window, limit - cost
-- How states of the current window begin.
local running = head .. pack(number_format, ending / window)
local starts = #running
-- The position of the usage as a text.
local offset = sub(plan, from + size, from + size + (starts > 9 and 1 or 0))

for r = 1, count do
  if fails == 0 or not failed[r] then
    local k = first + r - 1
    if first == 0 then
      k = unpack_at('<I2', plan, at + 2 * r - 2)
    end
    local value, used = values[k], nil
    local is_running = value and sub(value, 1, starts) == running

    if not decides then
      used = new_at[k]
      new_at[k] = nil
    else
      used = not writes and new_at[k]
      if used then
        -- An earlier request of the run has the same key.
      elseif not value then
        if most >= 0 and stored < room then
          stored = stored + 1
          used = 0
        end
      elseif #value == length then
        if is_running then
          used = unpack_at(format, value, starts + 1)
        elseif
          sub(value, 1, size) == head
          and unpack_at(number_format, value, size + 1) * window < ending
        then
          used = 0
        end
      end
      if used and used <= most then
        reply[filled + 1], reply[filled + 2] = most - used, ending
        filled = filled + 2
        used = used + cost
        if not writes then
          new_at[k] = used
        end
      else
        used = nil
        failed = failed or {}
        failed[r], fails = true, fails + 1
      end
    end

    if writes and used then
      local text = pack(format, used)
      if is_running then
        -- SETRANGE keeps the expiry of the key.
        call('SETRANGE', KEYS[k], offset, text)
        if values_needed then
          values[k] = running .. text
        end
      else
        value = running .. text
        call('SET', KEYS[k], value, 'PX', (time_to_live(ending)))
        values[k] = value
      end
    end
  end
end
