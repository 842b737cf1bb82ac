-- Makes a hold that a charge denies or delays, or that needs slots.

local allowed, _, unrestored = decide_all(asked)
local before = -1

-- A charge that must be restored first does not deny.
local denied = false
for i = 1, count do
  denied = denied or flags[i] % 2 == 1 and verdicts[i] ~= ALLOWED and verdicts[i] ~= UNRESTORED
end
-- Without room, a denied hold stays denied: other subjects may have used up the limit that denies it.
local is_cramped = lacks_room()
if is_cramped and not denied then
  return { now, NO_ROOM, '', 0 }
end

-- If the hold lacks only slots, queues it at every concurrency limit that it needs. Returns how many clients
-- wait before it, or -1 if it is not queued.
local function wait_for_slots()
  for i = 1, count do
    if flags[i] % 2 == 1 and verdicts[i] ~= ALLOWED and not limits[i].slots then
      return -1
    end
  end
  local longest = patience > 0 and 0 or -1
  for i = 1, patience > 0 and count or 0 do
    if flags[i] % 2 == 1 and limits[i].slots and costs[i] * units > 0 then
      local ahead = limits[i].slots.wait(keys[i], now + patience)
      if not ahead then
        return -1
      end
      touch(keys[i])
      longest = math.max(longest, ahead)
    end
  end
  return longest
end

local function leave_queues()
  for i = 1, count do
    if limits[i].slots and limits[i].slots.leave(keys[i]) then
      touch(keys[i])
    end
  end
end

-- Returns one fence for all slots that the hold takes; 0 if it takes none.
local function choose_fence()
  local fence = 0
  for i = 1, count do
    if limits[i].slots and verdicts[i] == ALLOWED and costs[i] * units > 0 then
      fence = math.max(fence, now, least, limits[i].slots.next_fence(keys[i]))
    end
  end
  return fence
end

if hold.ticket then
  -- A hold without room leaves its queues: it could not take the slots.
  before = (allowed or is_cramped) and -1 or wait_for_slots()
  if before < 0 then
    leave_queues()
  end
end
hold.fence = allowed and choose_fence() or 0
local chosen = unrestored and {} or take(units, allowed, false)
for i = 1, count do
  chosen[i] = chosen[i] == TAKE
end

local head = ''
if allowed then
  head = write_record(chosen)
  if not head then
    return { now, FOREIGN, '', record_at }
  end
end
write_changes()
reply[2], reply[3], reply[4], filled = allowed and DONE or DENIED, head, before, 4
report(allowed and units or 0, allowed)
return reply
