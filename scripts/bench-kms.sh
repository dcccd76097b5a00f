#!/usr/bin/env bash
# What docs/bench/kms.md reports, in one run on one machine: the service with durable audit, the
# signature library alone, a SoftHSM token directly and through the service, one tenant's load
# beside another's, envelope operations.
# `scripts/bench-kms.sh [seconds per figure, 10] [directory on the disk to measure]`
# RON_BENCH_PROFILE=dev tries the programs without building for speed.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
dir=${2:-target/bench}
profile=${RON_BENCH_PROFILE:-release}
target=${CARGO_TARGET_DIR:-$PWD/target}
out=$target/$([ "$profile" = dev ] && echo debug || echo "$profile")
work=$(mktemp -d)
trap 'rm -rf "$work" "$dir/kms" "$dir/fair" "$dir/envelope"' EXIT
rm -rf "$dir/kms" "$dir/fair" "$dir/envelope"
mkdir -p "$dir/kms" "$dir/fair"

cargo build --profile "$profile" --locked --workspace --bins
# With the token's part, aside: the others must not be built again for it.
cargo build --profile "$profile" --locked -p ron-benches -p ron-kms-bin \
  --features ron-benches/pkcs11,ron-kms/pkcs11 --target-dir "$target/pkcs11"
token=$target/pkcs11/$(basename "$out")

echo "## The library alone"
"$out/load" raw --seconds "$seconds"

module=/usr/lib/softhsm/libsofthsm2.so
with_token=()
if [ -e "$module" ]; then
  mkdir "$work/tokens"
  printf 'directories.tokendir = %s\nobjectstore.backend = file\nlog.level = ERROR\n' "$work/tokens" >"$work/softhsm2.conf"
  export SOFTHSM2_CONF=$work/softhsm2.conf
  softhsm2-util --init-token --free --label bench --so-pin 12345678 --pin 648219 >/dev/null
  install -m 600 /dev/null "$work/pin"
  echo 648219 >"$work/pin"
  echo
  echo "## A SoftHSM token, called directly"
  "$token/load" token --module "$module" --pin-file "$work/pin" --seconds "$seconds"
  with_token=(--module "$module" --pin-file "$work/pin")
else
  echo "no SoftHSM here: apt-get install softhsm2" >&2
fi

echo
echo "## The service, durable audit on"
"$out/load" kms --seconds "$seconds" --dir "$dir/kms" --kms "$token/ron-kms" "${with_token[@]}"
echo
echo "## One tenant beside another"
"$out/load" kms-fair --seconds "$seconds" --dir "$dir/fair"
echo
echo "## Envelope operations"
"$out/load" fleet --only envelope --seconds "$seconds" --dir "$dir/envelope"
