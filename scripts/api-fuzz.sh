#!/usr/bin/env bash
# schemathesis (installed by scripts/setup.sh) against the /openapi.json of real services: no 500, no undocumented answer.
# `scripts/api-fuzz.sh [service...]`   all six when none is named
#   EXAMPLES=500   cases for each operation (default 15)
#   SEED=7         of the cases (printed)
#   PHASES=fuzzing of schemathesis (default examples,coverage,fuzzing)
#   STATUSES=1     prints how often each operation was answered with what
#   RON=path       this binary instead of the release build
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 tests/api/fuzz.py "${RON:-${CARGO_TARGET_DIR:-target}/release/ron}" \
  "${SCHEMATHESIS:-target/fuzz-venv/bin/schemathesis}" "$@"
