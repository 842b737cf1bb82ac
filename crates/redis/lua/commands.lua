-- Tries each command of the scripts without changing anything, to check the rights of the user and the server.
--
-- KEYS[1]  A key that does not exist, under the prefix of states.
-- ARGV     None.
-- Returns  How many commands were tried, and a list of those that failed: name, error.

local tried, failed = 0, {}

local function try(name, ...)
  tried = tried + 1
  local answer = redis.pcall(name, ...)
  if type(answer) == 'table' and answer.err then
    failed[#failed + 1] = { name, answer.err }
  end
end

try('TIME')
try('MGET', KEYS[1])
try('EXISTS', KEYS[1])
try('DBSIZE')
try('STRLEN', KEYS[1])
try('GETRANGE', KEYS[1], 0, 0)
-- Writes only if the key exists, and it does not.
try('SET', KEYS[1], '', 'XX', 'PX', 1)
-- Writes no bytes.
try('SETRANGE', KEYS[1], 0, '')
try('PEXPIRE', KEYS[1], 1)
try('GET', KEYS[1])
-- Without options it changes nothing.
try('GETEX', KEYS[1])
try('ZCARD', KEYS[1])
try('ZCOUNT', KEYS[1], 0, 0)
try('ZSCORE', KEYS[1], '')
try('ZRANGE', KEYS[1], 0, 0)
try('ZREVRANGE', KEYS[1], 0, 0)
try('ZRANGEBYSCORE', KEYS[1], 0, 0)
try('ZREVRANGEBYSCORE', KEYS[1], 0, 0)
try('ZADD', KEYS[1], 'XX', 0, '')
try('ZREM', KEYS[1], '')
try('ZREMRANGEBYSCORE', KEYS[1], 0, 0)
try('PTTL', KEYS[1])
try('DEL', KEYS[1])

return { tried, failed }
