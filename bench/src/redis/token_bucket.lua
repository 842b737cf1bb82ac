-- One check of a token bucket, on the server's clock. The state is packed: tokens, and when they
-- were counted.
-- KEYS[1]  the key
-- ARGV     capacity, microseconds per token, cost
-- Returns  allowed, limit, remaining, retry after and reset after in microseconds

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local capacity, interval, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local tokens, counted = capacity, now
local state = redis.call('GET', KEYS[1])
if state then
  tokens, counted = struct.unpack('<dd', state)
  if counted < now then
    tokens = math.min(capacity, tokens + (now - counted) / interval)
    counted = now
  end
end
if cost > tokens then
  local wait, reset = (cost - tokens) * interval, (capacity - tokens) * interval
  return { 0, capacity, math.floor(tokens), math.ceil(wait), math.ceil(reset) }
end
tokens = tokens - cost
local reset = (capacity - tokens) * interval
redis.call('SET', KEYS[1], struct.pack('<dd', tokens, counted), 'PX', math.ceil(reset / 1000))
return { 1, capacity, math.floor(tokens), 0, math.ceil(reset) }
