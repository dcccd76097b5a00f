#!/usr/bin/env bash
# The whole loop under mixed load with kills, reloads, rotations and revocations, for MINUTES (default 2): flat memory, threads
# and descriptors, nothing promised is missing, every log verifies. Prints a table. RON_SEED=N repeats the moments of a run.
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=${1:-2}
[[ $minutes =~ ^[1-9][0-9]*$ ]] || { echo "usage: scripts/soak.sh [MINUTES]" >&2; exit 2; }
cargo build --release --locked --workspace --bins
RON_SOAK_MINUTES=$minutes cargo test --release --locked -p ron-tests --test soak -- --nocapture
