#!/usr/bin/env bash
# Measures the rewarder at 1, 10 and (streamed) 50 million accounts with peak memory, beside DuckDB and Polars in the
# same run, and payouts a second into the real ledger; writes docs/bench/rewarder.md. The machine should have nothing
# else to do. `scripts/bench-rewarder.sh [directory on the disk, target/bench-rewarder]`
#   SIZES=1000000,10000000  accounts, with the rivals     STREAMED=50000000  accounts, ours only (empty: none)
#   SETTLE=1000000          accounts of the epoch that is settled (0: none)
#   THREADS=2               for all three                 PROFILE=dev        builds for development (to try the script)
#   OUT=file                writes there instead          RIVALS_VENV=dir    a venv with duckdb and polars that is there
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-target/bench-rewarder}
profile=${PROFILE:-release} out=${OUT:-docs/bench/rewarder.md}
target=${CARGO_TARGET_DIR:-$PWD/target}
built=$target/$([ "$profile" = dev ] && echo debug || echo "$profile")
venv=${RIVALS_VENV:-$target/rivals-venv}

cargo build --profile "$profile" --locked -p ron
cargo build --profile "$profile" --locked -p svc-rewarder --example compute_time
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import duckdb, polars' 2>/dev/null ||
  "$venv/bin/pip" install -q --disable-pip-version-check duckdb==2.0.0 polars==2.1.0
rm -rf "$dir"
mkdir -p "$dir"
python3 benches/rewarder/measure.py --bin "$built" --dir "$dir" --python "$venv/bin/python" --out "$out" \
  --sizes "${SIZES-1000000,10000000}" --streamed "${STREAMED-50000000}" --settle "${SETTLE-1000000}" \
  --threads "${THREADS:-$(nproc)}"
rm -rf "$dir"
