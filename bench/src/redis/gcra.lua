-- One check of GCRA, on the server's clock. The state is the theoretical arrival time.
-- KEYS[1]  the key
-- ARGV     microseconds per unit, burst, cost
-- Returns  allowed, limit, remaining, retry after and reset after in microseconds

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local tat = tonumber(redis.call('GET', KEYS[1]) or 0)
if tat < now then
  tat = now
end
local room = now + burst * interval - tat
if cost * interval > room then
  return { 0, burst, math.floor(room / interval), cost * interval - room, tat - now }
end
tat = tat + cost * interval
redis.call('SET', KEYS[1], string.format('%.0f', tat), 'PX', math.ceil((tat - now) / 1000))
return { 1, burst, math.floor(room / interval) - cost, 0, tat - now }
