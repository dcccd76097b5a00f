#!/usr/bin/env bash
# Issuing and verifying passports over HTTP beside npm oidc-provider on this machine; writes docs/bench/passport.md.
# `scripts/bench-passport.sh [seconds per figure, 10] [rounds, 5] [processes of the rival, 2]`
#   OUT=file   writes there instead
#   RON=path   this binary instead of a release build
set -euo pipefail
cd "$(dirname "$0")/.."
command -v wrk >/dev/null || { echo "wrk is missing: apt-get install wrk" >&2; exit 1; }
if [ -z "${RON:-}" ]; then
  cargo build --release --locked --bin ron
  RON=${CARGO_TARGET_DIR:-target}/release/ron
fi
(cd benches/rivals/oidc && npm ci --no-audit --no-fund --silent)
ulimit -n 8192
exec python3 benches/rivals/oidc/measure.py "$RON" "${1:-10}" "${2:-5}" "${3:-2}" "${OUT:-docs/bench/passport.md}"
