-- Finds the record of an existing hold, for settle and extend.

local UNKNOWN, NOT_YOURS, OTHER = 4, 5, 10

if not value then
  if record_at <= whole and is_hidden(record_at) then
    return { now, FOREIGN, '', record_at }
  end
  if index then
    call('ZREM', index, ARGV[5])
  end
  return { now, UNKNOWN, '', 0 }
end
if #value < 65 then
  return { now, FOREIGN, '', record_at }
end
local kind, state, purpose, units, committed, used, charged, ends, its_token, its_fingerprint, fence, last, rest =
  unpack_at(HEAD, value)
if kind == 'h' and made > 0 and charged ~= made then
  return { now, OTHER, '', 0 }
end
if kind ~= 'h' or last ~= charges or #value < 65 + 7 * charges then
  return { now, FOREIGN, '', record_at }
end
hold.fence = fence
