-- Backoff: see backoff.rs.
--
-- Limit  The head of its states: 'o', how many denials are free (4 bytes), the factor (1 byte), the first block, the
--        longest block, after how long strikes are dropped, the penalty (7 bytes each).
-- State  The head, the strikes (4 bytes), the end of the block, the last denial (7 bytes each).

local HEAD = 34

local strikes, blocked_until, last_denial = {}, {}, {}

-- Returns the numbers of a head, or nil if it is invalid.
local function numbers_of(head)
  local n, kind = { head = head, companion = true }, nil
  kind, n.after, n.factor, n.base, n.max, n.forget, n.penalty = unpack_at('<c1I4BI7I7I7I7', head)
  if kind == 'o' then
    return n
  end
end

local function read(l)
  return numbers_of(sub(plan, l + 1, l + HEAD))
end

local function clear(k)
  strikes[k], blocked_until[k], last_denial[k] = 0, 0, 0
end

-- Returns the time at which the state expires.
local function expires(k, n)
  if strikes[k] == 0 then
    return 0
  end
  return math.max(last_denial[k] + n.forget, blocked_until[k])
end

-- Returns the current strikes, and the end of the block.
local function current(k, n)
  if expires(k, n) > now then
    return strikes[k], blocked_until[k]
  end
  return 0, 0
end

local function carry_over(k, n, from, how)
  if how == FORGET or expires(k, from) <= now then
    return clear(k)
  end
  if how == SHARE and from.after > 0 and n.after > 0 then
    local free = math.min(strikes[k], from.after)
    local further = strikes[k] - free
    strikes[k] = math.min(same_share(free, from.after, n.after) + further, 4294967295)
  end
  blocked_until[k] = math.min(blocked_until[k], math.max(last_denial[k], now) + n.max)
end

local function adopt(k, n, from, how)
  carry_over(k, n, from, how)
  return true
end

local function load(k, n, value, how)
  if not value then
    clear(k)
    return false
  end
  if #value ~= HEAD + 18 then
    return nil
  end
  strikes[k], blocked_until[k], last_denial[k] = unpack_at('<I4I7I7', value, HEAD + 1)
  local head = sub(value, 1, HEAD)
  if head == n.head then
    return false
  end
  local from = numbers_of(head)
  if not from then
    return nil
  end
  if how == AS_WRITTEN then
    return false, from
  end
  return adopt(k, n, from, how)
end

local function decide(k, n, cost)
  local struck, ending = current(k, n)
  if now >= ending then
    return ALLOWED, 0, math.max(n.after - struck, 0)
  end
  if cost == 0 then
    return ALLOWED, 0, 0
  end
  return UNTIL, ending, 0
end

-- Does nothing: only denials count.
local function charge() end
local function refund() end

-- Returns the length of a block after `before` earlier blocks.
local function block(n, before)
  local length = n.base
  if n.factor > 1 then
    -- Doubling exceeds every duration in 51 steps.
    while before > 0 and length < n.max do
      length, before = length * n.factor, before - 1
    end
  end
  return math.min(length, n.max)
end

-- Counts a strike, or adds the penalty to a block. Charges nothing.
local function overdraw(k, n)
  if expires(k, n) <= now then
    clear(k)
  end
  local ending = blocked_until[k]
  if now < ending then
    if n.penalty == 0 then
      return 0
    end
    blocked_until[k] = math.max(ending, math.min(ending + n.penalty, now + n.max))
  else
    strikes[k] = math.min(strikes[k] + 1, 4294967295)
    if strikes[k] > n.after then
      blocked_until[k] = now + block(n, strikes[k] - n.after - 1)
    end
  end
  last_denial[k] = math.max(last_denial[k], now)
  return 0
end

local function store(k, n, at)
  keep(k, n.head .. pack('<I4I7I7', strikes[k], blocked_until[k], last_denial[k]), at)
end
