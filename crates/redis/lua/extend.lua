-- Extends a hold.

local LAPSED = 7
local has_slots = bits % 4 >= 2

if purpose == 1 and its_token ~= token and not certain then
  return { now, NOT_YOURS, '', 0 }
end
if state ~= 0 then
  if index then
    call('ZREM', index, ARGV[5])
  end
  return { now, ALREADY, value, 0 }
end
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
local head = pack(
  HEAD,
  'h',
  state,
  purpose,
  units,
  committed,
  used,
  charged,
  ends,
  its_token,
  its_fingerprint,
  fence,
  charges
) .. sub(value, rest, rest + 7 * charges - 1)
call('SETRANGE', record_key, '0', head)
call('PEXPIRE', record_key, floor((math.max(ends - now, 0) + retain) / 1000) + 1)
if index then
  call('ZADD', index, ends, ARGV[5])
  call('PEXPIRE', index, INDEX_KEPT)
end
write_changes()
return { now, DONE, head, 0 }
