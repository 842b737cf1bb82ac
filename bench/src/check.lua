-- The load of `cargo xtask bench http`: each request is one check, with one of 10,000 API keys at random.

local requests = {}

function init(args)
  math.randomseed(1)
  local headers = { ["Content-Type"] = "application/json" }
  for i = 1, 10000 do
    local body = string.format(
      '{"attributes":{"tenant":"tenant-%d","api_key":"%016x","action":"search"},"cost":1}',
      i % 100, i * 2654435761)
    requests[i] = wrk.format("POST", "/v1/check", headers, body)
  end
end

function request()
  return requests[math.random(#requests)]
end

-- Prints one line for the caller: requests, microseconds, p99 in microseconds, failures.
function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format("result %d %d %d %d\n",
    summary.requests, summary.duration, latency:percentile(99), failed))
end
