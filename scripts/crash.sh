#!/usr/bin/env bash
# Crash images of the log, and kills of the real KMS under load.
#   scripts/crash.sh [images, default 10000] [kills, default 100]
# The images are a simulated disk's: the power goes at a random operation of a random workload, and what was not synced is lost, kept,
# torn or holed. After each the log opens with everything that was acknowledged. The kills are `kill -9` of ron-kms; after each start the
# clients' own journal of receipts is checked. RON_SEED repeats a run.
set -euo pipefail
cd "$(dirname "$0")/.."
export RON_CRASH_IMAGES="${1:-10000}" RON_AUDIT_KILLS="${2:-100}"
profile=("${RON_CRASH_PROFILE:---release}")
[ "${profile[0]}" = --dev ] && profile=()
cargo build --quiet --locked "${profile[@]}" --workspace --bins
cargo test --quiet --locked "${profile[@]}" -p ron-tlog --test crash -- --nocapture
cargo test --quiet --locked "${profile[@]}" -p ron-tests --test tlog -- kill --nocapture
