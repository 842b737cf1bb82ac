-- Extends a hold.

local LAPSED = 7
local has_slots = bits % 4 >= 2

if has_slots and now >= ends then
  return { now, LAPSED, value, 0 }
end
local _, _, foreign = next_request()
if foreign then
  return { now, FOREIGN, '', foreign }
end
for i = 1, count do
  if limits[i].slots and not limits[i].slots.has(keys[i]) then
    return { now, LAPSED, value, 0 }
  end
end
ends = math.max(ends, absolute and time or now + time)
for i = 1, count do
  if limits[i].slots then
    limits[i].slots.renew(keys[i], ends)
    touch(keys[i])
  end
end
-- Only the expiry changes: bytes 26 to 32.
local head = sub(value, 1, 25) .. pack('<I7', ends) .. sub(value, 33, 65 + 7 * charges)
call('SETRANGE', record_key, '0', head)
call('PEXPIRE', record_key, floor((math.max(ends - now, 0) + retain) / 1000) + 1)
if index then
  call('ZADD', index, ends, ARGV[5])
  call('PEXPIRE', index, INDEX_KEPT)
end
if open then
  call('ZADD', open, 'XX', ends, ARGV[5])
  call('PEXPIRE', open, INDEX_KEPT)
end
write_changes()
return { now, DONE, head, 0 }
