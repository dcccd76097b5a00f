#!/usr/bin/env bash
# Our metrics parser beside other people's on real pages: Debian's exporters and a fresh fleet. Rust peers are built in
# benches/rivals; Go's are measured too where Debian's packages of their sources are installed:
#   golang-github-victoriametrics-victoriametrics-dev golang-github-victoriametrics-metricsql-dev
#   golang-github-valyala-fastjson-dev golang-github-prometheus-common-dev
# `scripts/parsers.sh [seconds per figure, 2]`; the figures are processor time, so other work disturbs them little.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-2}
target=${CARGO_TARGET_DIR:-$PWD/target}
pages=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$pages"' EXIT

cargo build --release --locked -p ron
cargo build --release --locked --manifest-path benches/rivals/Cargo.toml -p ron-parser-rivals --target-dir "$target/rivals"

# A port that is free at this moment.
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
scrape() { curl -s --retry 30 --retry-delay 1 --retry-connrefused "$1" -o "$pages/$2.txt"; }

node=$(port) prometheus=$(port)
prometheus-node-exporter --web.listen-address="127.0.0.1:$node" >"$pages/log" 2>&1 &
printf 'global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: self\n  static_configs: [{targets: ["127.0.0.1:%s"]}]\n' \
  "$prometheus" >"$pages/prometheus.yml"
prometheus --config.file="$pages/prometheus.yml" --storage.tsdb.path="$pages/tsdb" \
  --web.listen-address="127.0.0.1:$prometheus" >"$pages/log" 2>&1 &
"$target/release/ron" up --base-port 0 --data-dir "$pages/fleet" >"$pages/up" 2>"$pages/log" &
until grep -q '^ready' "$pages/up"; do sleep 0.2; done
health() { python3 -c 'import json, sys; print(next(s["health"] for s in json.load(open(sys.argv[1]))["services"] if s["service"] == sys.argv[2]))' "$pages/fleet/run/endpoints.json" "$1"; }
scrape "http://127.0.0.1:$node/metrics" node-exporter
scrape "http://127.0.0.1:$prometheus/metrics" prometheus
scrape "$(health ron-kms)/metrics" ron-kms
scrape "$(health svc-wallet)/metrics" svc-wallet
jobs -p | xargs kill
wait || true

names=("$pages"/{node-exporter,prometheus,ron-kms,svc-wallet}.txt)
"$target/rivals/release/ron-parser-rivals" "$seconds" "${names[@]}"
if (cd benches/rivals/parsers/go && GO111MODULE=off GOPATH=/usr/share/gocode go build -o "$target/rivals/go-parsers" main.go) 2>"$pages/log"; then
  "$target/rivals/go-parsers" "$seconds" "${names[@]}"
else
  echo "(Go's parsers are not measured: their packages are not installed)" >&2
fi
