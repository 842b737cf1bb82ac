-- Finds the record of an open hold that the caller may change, for settle and extend.

local UNKNOWN, NOT_YOURS, OTHER = 4, 5, 10
local COMMIT, RELEASE, EXPIRE, RELEASE_LEASE, UNDO = 1, 2, 3, 4, 5

-- Removes the hold from the sets of open holds.
local function forget_open()
  if index then
    call('ZREM', index, ARGV[5])
  end
  if open then
    call('ZREM', open, ARGV[5])
  end
end

if not value then
  if record_at <= whole and is_hidden(record_at) then
    return { now, FOREIGN, '', record_at }
  end
  forget_open()
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

-- A reservation has no token.
local may = certain
if operation == EXTEND then
  may = may or purpose == 0 or its_token == token
else
  may = may
    or how == EXPIRE
    or (purpose == 0 and (how == COMMIT or how == RELEASE))
    or (purpose == 1 and how == RELEASE_LEASE and its_token == token)
end
if not may then
  return { now, NOT_YOURS, '', 0 }
end
if state ~= 0 then
  forget_open()
  return { now, ALREADY, value, 0 }
end
