-- Reads and changes records of holds, the index of due holds, and slots, where no decision is needed. The
-- index is a sorted set of the ids of holds, by the time at which an instance has to end each hold.
--
-- KEYS[1]  The record, the index, or the slots.
-- ARGV[1]  The operation:
--            'get'      returns the record, or ''
--            'put'      writes the record ARGV[3] for ARGV[4] milliseconds, unless there is one; returns 1 if it did
--            'due'      returns the first ARGV[3] ids of the index that an instance has to end now
--            'note'     adds id ARGV[3] to the index, to be ended at the time ARGV[4], and keeps the index for at
--                       least ARGV[5] milliseconds after that time
--            'forget'   removes id ARGV[3] from the index
--            'raise'    makes the next fence of the slots at least ARGV[3]
--            'leave'    removes ticket ARGV[3] from the queue; returns how many members were removed
--            'holders'  returns the first ARGV[3] holders of a slot, each with its expiry
-- ARGV[2]  The time in microseconds since the epoch, or 0 for the time of the server.
-- Returns  What ARGV[1] says. 'note' and 'raise' return 1, and 'forget' returns how many ids were removed.

local call = redis.call
local what, now = ARGV[1], ARGV[2]
if now == '0' then
  local time = call('TIME')
  now = string.format('%.0f', time[1] * 1000000 + time[2])
end

if what == 'get' then
  return call('GET', KEYS[1]) or ''
elseif what == 'put' then
  return call('SET', KEYS[1], ARGV[3], 'NX', 'PX', ARGV[4]) and 1 or 0
elseif what == 'due' then
  return call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[3])
elseif what == 'note' then
  call('ZADD', KEYS[1], ARGV[4], ARGV[3])
  local kept = math.max(ARGV[4] - now, 0) / 1000 + ARGV[5]
  if call('PTTL', KEYS[1]) < kept then
    call('PEXPIRE', KEYS[1], string.format('%.0f', kept + 1))
  end
  return 1
elseif what == 'forget' then
  return call('ZREM', KEYS[1], ARGV[3])
elseif what == 'raise' then
  local next = call('ZSCORE', KEYS[1], 'f')
  if next and tonumber(next) < tonumber(ARGV[3]) then
    call('ZADD', KEYS[1], 'XX', ARGV[3], 'f')
  end
  return 1
elseif what == 'leave' then
  return call('ZREM', KEYS[1], 'o' .. ARGV[3], 'd' .. ARGV[3])
end

-- One member may be 'f', the next fence.
local found = call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3] + 1)
local holders = {}
for i = 1, #found, 2 do
  if found[i] ~= 'f' and #holders < 2 * ARGV[3] then
    holders[#holders + 1] = found[i]
    holders[#holders + 1] = string.format('%.0f', found[i + 1])
  end
end
return holders
