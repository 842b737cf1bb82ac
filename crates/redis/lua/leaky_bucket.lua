-- Leaky bucket: a meter, and when it shapes, turns. See leaky_bucket.rs.
--
-- Limit  As a meter, then 1 byte: whether it shapes, and the longest wait in microseconds (7 bytes;
--        2^53 - 1 if any will do).
-- State  As a meter.

local shapes, max_wait = {}, {}

local function read(l, at)
  at = read_meter(l, at)
  shapes[l], max_wait[l], at = unpack_at('<I1I7', ARGV[4], at)
  return at
end

local function decide(k, l, cost)
  local verdict, when, available = decide_meter(k, l, cost)
  if shapes[l] == 0 or verdict == NEVER then
    return verdict, when, available
  end
  local whole = expires(k, l)
  local soon = whole - max_wait[l]
  if verdict == UNTIL then
    return QUEUE_FULL, soon > when and soon or when, available
  end
  if soon > now then
    return QUEUE_FULL, soon, available
  end
  return ALLOWED, whole > now and whole - now or 0, available
end
