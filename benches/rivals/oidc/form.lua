-- POSTs as fast as the server responds; the path, the type, and the body or a file of bodies, one a line, come from the
-- environment. Each thread goes around the lines that are its own.
wrk.method = "POST"
wrk.path = os.getenv("LOAD_PATH")
wrk.body = os.getenv("LOAD_BODY")
wrk.headers["Content-Type"] = os.getenv("LOAD_TYPE")

local threads = 0
function setup(thread)
  thread:set("own", threads)
  threads = threads + 1
end

function init()
  local file = os.getenv("LOAD_BODIES")
  if not file then return end
  local of, line, calls, at = tonumber(os.getenv("LOAD_THREADS")), 0, {}, 0
  for body in io.lines(file) do
    if line % of == own then calls[#calls + 1] = wrk.format(nil, nil, nil, body) end
    line = line + 1
  end
  request = function()
    at = at % #calls + 1
    return calls[at]
  end
end

function done(summary, latency)
  local errors = summary.errors
  local bad = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  print(string.format("FIGURES %d %d %d %d %d", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), bad))
end
