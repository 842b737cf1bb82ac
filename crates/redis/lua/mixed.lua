-- For calls with several algorithms: each function calls the function of the same name of the limit's
-- algorithm. `algorithms`, which comes before this file, has the functions of each algorithm. Its index is
-- the byte at the start of a limit.

local function read(l)
  local it = algorithms[string.byte(plan, l)]
  local n = it.read(l)
  n.of = it
  return n
end

local function load(k, n, value, how)
  local moved, own = n.of.load(k, n, value, how)
  if own then
    own.of = n.of
  end
  return moved, own
end

local function adopt(k, n, from, how)
  return n.of.adopt(k, n, from, how)
end

local function decide(k, n, cost)
  return n.of.decide(k, n, cost)
end

local function charge(k, n, cost)
  return n.of.charge(k, n, cost)
end

local function overdraw(k, n, cost, most)
  return n.of.overdraw(k, n, cost, most)
end

local function refund(k, n, cost, at)
  return n.of.refund(k, n, cost, at)
end

local function expires(k, n)
  return n.of.expires(k, n)
end

local function store(k, n, at)
  return n.of.store(k, n, at)
end
