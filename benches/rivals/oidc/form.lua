-- POSTs one body as fast as it is answered; the body, its type and the path come from the environment.
wrk.method = "POST"
wrk.path = os.getenv("LOAD_PATH")
wrk.body = os.getenv("LOAD_BODY")
wrk.headers["Content-Type"] = os.getenv("LOAD_TYPE")

function done(summary, latency)
  local errors = summary.errors
  local bad = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  print(string.format("FIGURES %d %d %d %d %d", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), bad))
end
