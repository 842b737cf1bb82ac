-- Reads and updates the index of rules with a shared state: a sorted set of rules, by the time at which their shared
-- states end.
--
-- KEYS[1]  The index.
-- ARGV[1]  The time in microseconds since the epoch.
-- ARGV[2]  How many rules to return at most.
-- ARGV     Then, for each rule to add: when its shared state ends, and its name.
-- Returns  The rules whose shared states have not ended, each with its end.

-- After this command, which never needs memory and changes nothing, the server accepts writes even if it is out of
-- memory. The index has at most one entry for each rule and algorithm.
redis.call('ZREM', KEYS[1], '')
for i = 3, #ARGV, 2 do
  redis.call('ZADD', KEYS[1], 'GT', ARGV[i], ARGV[i + 1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if last then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.floor((last - ARGV[1]) / 1000) + 1))
end
return redis.call('ZRANGE', KEYS[1], 0, ARGV[2] - 1, 'WITHSCORES')
