-- Prints the figures of a run: requests, microseconds, the 99th percentile, and broken connections. A status is
-- not a failure: some rounds measure denials.
function done(summary, latency, requests)
  local errors = summary.errors
  local broken = errors.connect + errors.read + errors.write + errors.timeout
  print(string.format("result %d %d %d %d", summary.requests, summary.duration, latency:percentile(99), broken))
end
