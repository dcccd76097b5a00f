-- The load of `cargo xtask rivals`: RIVAL_ROUTE is hello or echo; prints one line of figures.
if os.getenv("RIVAL_ROUTE") == "echo" then
  wrk.method = "POST"
  wrk.path = "/echo"
  wrk.headers["Content-Type"] = "application/json"
  local head = '{"id":7,"from":"account-a","to":"account-b","amount_minor":"1250","tags":["a","b","c"],"memo":"'
  wrk.body = head .. string.rep("m", 1024 - #head - 2) .. '"}'
else
  wrk.path = "/hello"
end

done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("FIGURES %d %d %d %d %d\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
