#!/bin/sh
# Signatures per second over HTTP with durable audit on, then the offline check of the log it made.
# Usage: load.sh <ron-kms binary> [connections=64] [seconds=10] [batch=0] [dir]
# Needs wrk and curl. The data directory must be on the disk that is to be measured.
set -eu
bin=$1; conns=${2:-64}; secs=${3:-10}; batch=${4:-0}
dir=${5:-$(mktemp -d "${TMPDIR:-/tmp}/kms-load.XXXXXX")}
here=$(dirname "$0")
mkdir -p "$dir"
token=ron_load_$(head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=\n')
hash=$(printf %s "$token" | sha256sum | cut -d' ' -f1)
cat > "$dir/config.toml" <<TOML
bind_addr = "127.0.0.1:17440"
health_addr = "127.0.0.1:17445"
data_dir = "$dir/data"
http.workers = ${KMS_WORKERS:-4}
[[auth.principals]]
name = "load"
tenant = "ron"
scopes = ["kms:sign", "kms:read", "kms:create"]
sha256 = "$hash"
TOML
"$bin" --config "$dir/config.toml" 2> "$dir/log" &
pid=$!
trap 'kill $pid 2>/dev/null; wait $pid 2>/dev/null || true' EXIT
tries=0
until curl -sf -o /dev/null http://127.0.0.1:17445/readyz; do
  tries=$((tries + 1))
  if [ $tries -gt 100 ]; then cat "$dir/log"; exit 1; fi
  sleep 0.05
done
body='{"tenant":"ron","purpose":"load","alg":"ed25519","op_id":"0190f0a0-0000-7000-8000-000000000001"}'
key=$(curl -sf -H "Authorization: Bearer $token" -H 'Content-Type: application/json' -d "$body" \
  http://127.0.0.1:17440/v1/kms/keys | sed 's/.*"key":"\([^"]*\)".*/\1/')
KMS_TOKEN=$token KMS_KEY=$key KMS_BATCH=$batch \
  wrk -t2 -c"$conns" -d"${secs}s" --latency -s "$here/sign.lua" http://127.0.0.1:17440 | tail -1
curl -s http://127.0.0.1:17445/metrics | grep -E '^ron_kms_(audit_leaves_total|audit_batch_size_(sum|count)|audit_fsync_seconds_(sum|count)|rejects_total|log_size)' || true
grep -E 'VmRSS|Threads' /proc/$pid/status
