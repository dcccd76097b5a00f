#!/usr/bin/env bash
# Measures the console under its stated load: 100 nodes of 500 series, 200 overview requests a second, then the same
# beside 100 nodes that hang. Prints the table of docs/bench/admin.md.
# `scripts/console.sh [seconds per figure, 30]`
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
cargo build --release --locked -p svc-admin-bin -p ron-benches
ulimit -n 4096
exec "$target/release/load" console --seconds "${1:-30}"
