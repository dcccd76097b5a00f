#!/usr/bin/env bash
# schemathesis (installed by scripts/setup.sh) against the /openapi.json of real services: no 500, no undocumented answer.
# `scripts/api-fuzz.sh [service...]`   by default those that tests/api/fuzz.py holds to it
#   EXAMPLES=500   cases for each operation (default 15)
#   SEED=7         of the cases (printed)
#   RON=path       this binary instead of the release build
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 tests/api/fuzz.py "${RON:-${CARGO_TARGET_DIR:-target}/release/ron}" \
  "${SCHEMATHESIS:-target/fuzz-venv/bin/schemathesis}" "$@"
