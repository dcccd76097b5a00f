#!/usr/bin/env bash
# Measures what docs/bench/ reports, on this machine: the fleet over HTTP, then the parts in process.
# `scripts/bench.sh [seconds per figure, 10] [directory on the disk to measure]`
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
dir=${2:-target/bench}
rm -rf "$dir/fleet" "$dir/log" "$dir/ledger"
mkdir -p "$dir"

cargo build --release --locked --workspace --bins
cargo build --release --locked -p svc-rewarder -p ron-ledger -p ron-tlog --examples

echo "## Fleet over HTTP"
./target/release/load fleet --seconds "$seconds" --dir "$dir/fleet"
echo
echo "## Log: durable appends in process"
./target/release/examples/append_rate "$dir/log"
echo
echo "## Ledger: durable commits in process"
./target/release/examples/commits "$dir/ledger"
echo
echo "## Reward calculus"
./target/release/examples/compute_time 1000000
rm -rf "$dir/fleet" "$dir/log" "$dir/ledger"
