-- The load of an HTTP server: each request is one of the requests in a file, at random. The arguments are the file and
-- the path. The file has a line of header fields or an empty line, then one body per line.

local requests = {}

function init(args)
  math.randomseed(1)
  local headers = { ["Content-Type"] = "application/json" }
  local is_first = true
  for line in io.lines(args[1]) do
    if is_first then
      is_first = false
      for name, value in string.gmatch(line, "([^:;]+): ([^;]+)") do
        headers[name] = value
      end
    else
      requests[#requests + 1] = wrk.format("POST", args[2], headers, line)
    end
  end
end

function request()
  return requests[math.random(#requests)]
end

-- Prints one line for the caller: requests, microseconds, p50 and p99 in microseconds, failures.
function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format("result %d %d %d %d %d\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), failed))
end
