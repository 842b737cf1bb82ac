-- One check of a fixed window that begins with its first request.
-- KEYS[1]  the key
-- ARGV     limit, window in milliseconds, cost
-- Returns  allowed, used

local used = redis.call('INCRBY', KEYS[1], ARGV[3])
if used == tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
if used > tonumber(ARGV[1]) then
  return { 0, used }
end
return { 1, used }
