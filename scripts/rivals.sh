#!/usr/bin/env bash
# Our HTTP front beside axum and tiny_http: builds the three servers of benches/rivals and loads
# them in turn with wrk at 16, 128 and 1,000 connections; prints medians.
# `scripts/rivals.sh [seconds per run, 5] [rounds, 5]`
set -euo pipefail
cd "$(dirname "$0")/.."
command -v wrk >/dev/null || { echo "wrk is missing: apt-get install wrk" >&2; exit 1; }
target=${CARGO_TARGET_DIR:-$PWD/target}/rivals
cargo build --release --manifest-path benches/rivals/Cargo.toml --target-dir "$target"
ulimit -n 8192
exec python3 benches/rivals/measure.py "$target/release" "${1:-5}" "${2:-5}"
