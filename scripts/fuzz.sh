#!/usr/bin/env bash
# Fuzzes the request parser, the chunked decoder, routing, strict JSON, compressed bodies, the metrics reader, and
# sequences of ledger operations.
# `scripts/fuzz.sh [seconds per target, 10] [target ...]`
# Needs no cargo-fuzz: libFuzzer is linked in, and the stable compiler instruments the code.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
targets=("${@:2}")
((${#targets[@]})) || targets=(request chunked routing json unpack metrics ledger)

out=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
# The flags that cargo-fuzz would give, without the address sanitizer: our code has no unsafe.
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
export RUSTC_BOOTSTRAP=1 # as `cargo fuzz` needs it on the stable compiler, so that builds are shared
cargo build --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir "$out"

for target in "${targets[@]}"; do
  mkdir -p "$out/corpus/$target" "$out/artifacts/$target"
  echo "== $target"
  dict=()
  [ -f "fuzz/$target.dict" ] && dict=("-dict=fuzz/$target.dict")
  "$out/$host/release/$target" "$out/corpus/$target" "fuzz/corpus/$target" \
    -max_total_time="$seconds" -max_len=4096 -timeout=5 -rss_limit_mb=1024 -verbosity=0 \
    -print_final_stats=1 -artifact_prefix="$out/artifacts/$target/" "${dict[@]}" 2>&1 |
    grep -vE '^(stat::(new_units|slowest|peak)|"|###)' || { echo "$target failed; see $out/artifacts/$target" >&2; exit 1; }
done
