#!/usr/bin/env bash
# Runs the loom models of ron-kernel, then each mutant, which must fail.
# LOOM_MAX_PREEMPTIONS=3 explores deeper (default 2).
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-2}"

RUSTFLAGS="--cfg loom" timeout 600 cargo test -q --release -p ron-kernel --lib models::

for mutant in queue:queue_and reply:a_reply credits:credits_are; do
  if RUST_BACKTRACE=0 RUSTFLAGS="--cfg loom --cfg mutant=\"${mutant%%:*}\"" timeout 120 \
    cargo test -q --release -p ron-kernel --lib "models::${mutant##*:}" >/dev/null 2>&1; then
    echo "the models did not catch the mutant: ${mutant%%:*}" >&2
    exit 1
  fi
  echo "mutant caught: ${mutant%%:*}"
done
