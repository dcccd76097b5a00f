-- Load of POST /v1/kms/sign (or sign_batch) for wrk; made by load.sh.
-- Environment: KMS_TOKEN, KMS_KEY, KMS_BATCH (0 = single), KMS_MESSAGE_BYTES.
local token = os.getenv("KMS_TOKEN")
local key = os.getenv("KMS_KEY")
local batch = tonumber(os.getenv("KMS_BATCH") or "0")
local bytes = tonumber(os.getenv("KMS_MESSAGE_BYTES") or "32")

local alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
local function message()
  -- whole groups of four characters, so that every text is canonical base64url
  local chars = {}
  for i = 1, math.ceil(bytes / 3) * 4 do
    local at = math.random(#alphabet)
    chars[i] = alphabet:sub(at, at)
  end
  return table.concat(chars)
end

wrk.method = "POST"
wrk.headers["Authorization"] = "Bearer " .. token
wrk.headers["Content-Type"] = "application/json"
local path = batch > 0 and "/v1/kms/sign_batch" or "/v1/kms/sign"

local function body()
  if batch == 0 then
    return '{"key":"' .. key .. '","message":"' .. message() .. '"}'
  end
  local items = {}
  for i = 1, batch do items[i] = '{"message":"' .. message() .. '"}' end
  return '{"key":"' .. key .. '","items":[' .. table.concat(items, ",") .. ']}'
end

local prepared = {}
function init(args)
  math.randomseed(os.time())
  for i = 1, 64 do prepared[i] = wrk.format("POST", path, nil, body()) end
end

local at = 0
function request()
  at = at % #prepared + 1
  return prepared[at]
end

function done(summary, latency, requests)
  local per = batch > 0 and batch or 1
  local seconds = summary.duration / 1e6
  io.write(string.format(
    "signatures/s %.0f  requests/s %.0f  p50 %.2f ms  p99 %.2f ms  max %.2f ms  not 2xx %d  socket errors %d\n",
    summary.requests * per / seconds, summary.requests / seconds,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000, latency.max / 1000,
    summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout))
end
