-- Leaky bucket: a meter that can also delay requests. See leaky_bucket.rs.
--
-- Limit  As in `meter.lua`, then whether it delays requests (1 byte), and the longest delay in microseconds (7 bytes;
--        2^53 - 1 for no maximum).
-- State  As in `meter.lua`.

local function read(l)
  local n = read_meter(l)
  n.shapes, n.max_wait = unpack_at('<BI7', plan, n.next)
  return n
end

local function decide(k, n, cost)
  local verdict, when, available = decide_meter(k, n, cost)
  if n.shapes == 0 or verdict == NEVER then
    return verdict, when, available
  end
  local whole = expires(k, n)
  local soon = whole - n.max_wait
  if verdict == UNTIL then
    return QUEUE_FULL, soon > when and soon or when, available
  end
  if soon > now then
    return QUEUE_FULL, soon, available
  end
  return ALLOWED, whole > now and whole - now or 0, available
end
