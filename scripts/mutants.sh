#!/usr/bin/env bash
# Mutation testing (cargo-mutants) of what decides about money and of what makes a request happen once: the ledger's
# core, its replay and key index, the wallet's flights, pins and copy of answers. Each mutant is one changed
# expression; the unit tests of its crate must fail. Survivors are listed in OUT/mutants.out/missed.txt.
# `scripts/mutants.sh [shard, as 0/8] [more options of cargo mutants]`
#   OUT=dir                where the results go (default target/mutants)
#   RON_LEDGER_CASES=60    cases of the comparison with the model, each mutant
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/target/tools/bin:$PATH" RON_LEDGER_CASES="${RON_LEDGER_CASES:-60}"
command -v cargo-mutants >/dev/null || cargo install --quiet --locked --root target/tools --version 27.1.0 cargo-mutants
shard=${1:-0/1}
out=${OUT:-target/mutants}
mkdir -p "$out"
files=(
  crates/ron-ledger/src/core/{codec,decide,delta,image,leaf,op,op_codec,rules,state}.rs
  crates/ron-ledger/src/{answers,replay}.rs
  crates/ron-ledger/src/store/keys.rs
  crates/svc-wallet/src/{flights,pins}.rs
  crates/svc-wallet/src/answers/{mod,index,segments}.rs
)
options=()
for file in "${files[@]}"; do options+=(--file "$file"); done
# One at a time and only the library's own tests, so that a mutant costs seconds.
nice -n 19 cargo mutants --package ron-ledger --package svc-wallet --jobs 1 --shard "$shard" --output "$out" --timeout 120 --no-shuffle --baseline skip \
  --colors never "${options[@]}" "${@:2}" -- --lib
