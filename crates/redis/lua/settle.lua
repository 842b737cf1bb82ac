-- Ends a hold.

local NOT_YET, UNRESTORED = 6, 9
undoing = bits >= 32

if how == EXPIRE and now < ends and not certain then
  if index then
    call('ZADD', index, ends, ARGV[5])
    call('PEXPIRE', index, INDEX_KEPT)
  end
  return { now, NOT_YET, value, 0 }
end
local _, _, foreign = next_request()
if foreign then
  return { now, FOREIGN, '', foreign }
end

-- `taken`: what each charge of the record has taken after the end. `freed`: the charges with slots to free.
local taken, freed = '', {}
for _ = 1, charges do
  local place, cost, overdraft, had
  place, cost, overdraft, from = unpack_at('<I2I7I7', ARGV[2], from)
  had, rest = unpack_at('<I7', value, rest)
  local due, k, n = 0, keys[place], limits[place]
  if had > 0 and n and n.slots then
    freed[#freed + 1] = place
  elseif had > 0 or (cost * units == 0 and not (n and (n.slots or n.companion))) then
    -- A charge that has a cost and took nothing does not get here: it belongs to a shadow rule that would
    -- have denied.
    if purpose == 1 and how ~= RELEASE and how ~= UNDO then
      due = had
    elseif how == COMMIT then
      due = math.min(cost * amount, MAX)
    end
    -- An unlimited charge takes its full cost.
    local known = n and expires(k, n) > 0
    if n and due ~= had and not known and flags[place] % 64 >= 32 and not certain then
      -- The ledger must restore the state first. Nothing was written so far.
      return { now, UNRESTORED, '', 0 }
    end
    if known and due < had then
      if not was_reset(place) then
        refund(k, n, had - due, charged)
        touch(k)
      end
    elseif n and due > had and (known or flags[place] % 64 < 32) then
      due = had + overdraw(k, n, due - had, overdraft)
      touch(k)
    end
  end
  taken = taken .. pack('<I7', due)
end
for i = 1, #freed do
  local place = freed[i]
  refund(keys[place], limits[place])
  touch(keys[place])
end

if how == COMMIT then
  state, committed, used = 1, 1, amount
else
  state = how == EXPIRE and 3 or 2
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
) .. taken
if how == UNDO then
  call('DEL', record_key)
else
  -- The record is kept at least until the expiry: until then a ledger may still have the hold as
  -- open.
  local kept = floor((math.max(ends - now, 0) + retain) / 1000) + 1
  call('SET', record_key, head .. sub(value, rest), 'PX', kept)
end
forget_open()
write_changes()
return { now, DONE, head, 0 }
