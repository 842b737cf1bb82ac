-- Several algorithms in one call: each function is that of the limit's algorithm. The algorithms
-- stand before this, each with its functions in `algorithms`, by the byte that its limits begin
-- with.

local of = {}

local function read(l, at)
  local it = algorithms[string.byte(ARGV[4], at - 1)]
  of[l] = it
  return it.read(l, at)
end

local function load(k, l, value)
  return of[l].load(k, l, value)
end

local function adopt(k, l, from)
  return of[l].adopt(k, l, from)
end

local function decide(k, l, cost)
  return of[l].decide(k, l, cost)
end

local function charge(k, l, cost)
  return of[l].charge(k, l, cost)
end

local function charge_denied(k, l, cost)
  return of[l].charge_denied(k, l, cost)
end

local function refund(k, l, cost, at)
  return of[l].refund(k, l, cost, at)
end

local function expires(k, l)
  return of[l].expires(k, l)
end

local function store(k, l, at)
  return of[l].store(k, l, at)
end
