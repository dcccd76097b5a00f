#!/usr/bin/env bash
# Mutation testing (cargo-mutants) of what decides about money and of what makes a request happen once: the ledger's
# core, its replay and key index, the wallet's flights, pins and copy of answers. Each mutant is one changed
# expression; the unit tests of its crate must fail. Survivors are listed in OUT/mutants.out/missed.txt.
# `scripts/mutants.sh [sample, as 0/8] [more options of cargo mutants]`
#   OUT=dir                where the results go (default target/mutants)
#   RON_LEDGER_CASES=30    cases of the comparison with the model, each mutant
# A sample k/n is every n-th mutant in the order of the sources, from the k-th: the same each time and spread over all
# files. A mutant costs one build of its crate in the dev profile and some seconds of tests (about 10 s on one core).
# Two passes: the first leaves out the exhaustive generator, which is the slowest test; the second gives those that
# survived all tests and twenty times the cases.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/target/tools/bin:$PATH"
command -v cargo-mutants >/dev/null || cargo install --quiet --locked --root target/tools --version 27.1.0 cargo-mutants
shard=${1:-0/1}
cases=${RON_LEDGER_CASES:-30}
out=${OUT:-target/mutants}
mkdir -p "$out"
files=(
  crates/ron-ledger/src/core/{codec,decide,delta,image,leaf,limits,op,op_codec,rules,state}.rs
  crates/ron-ledger/src/{answers,replay}.rs
  crates/ron-ledger/src/store/keys.rs
  crates/svc-wallet/src/{flights,pins}.rs
  crates/svc-wallet/src/answers/{mod,index,segments}.rs
)
options=(--package ron-ledger --package svc-wallet --jobs 1 --shard "$shard" --sharding round-robin --output "$out"
  --timeout 120 --baseline skip --no-shuffle --colors never)
for file in "${files[@]}"; do options+=(--file "$file"); done
score() {
  local caught missed timeout
  caught=$(($(wc -l <"$out/mutants.out/caught.txt") + $(cat "$out/mutants.out/previously_caught.txt" 2>/dev/null | wc -l)))
  missed=$(wc -l <"$out/mutants.out/missed.txt") timeout=$(wc -l <"$out/mutants.out/timeout.txt")
  echo "sample $shard: $((caught + timeout)) killed, $missed survived: $((100 * (caught + timeout) / (caught + timeout + missed))) %"
}
# cargo-mutants ends with 2 when some survive, with 3 on timeouts.
pass() { nice -n 19 cargo mutants "${options[@]}" "$@" || (($? == 2 || $? == 3)); }
RON_LEDGER_CASES=$cases pass "${@:2}" -- --lib -- --skip exhaustive
score
RON_LEDGER_CASES=$((20 * cases)) pass --iterate "${@:2}" -- --lib
score
