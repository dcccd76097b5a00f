#!/usr/bin/env bash
# Runs the models of ron-kernel's protocols, and those of the log's, its witness's, the wallet's and token verification's above them, twice: with loom (all interleavings of up to 5 threads)
# and with shuttle (sampled interleavings of more). Then each mutant, a version that is wrong on
# purpose: both checkers must fail on it, or this script does.
#   LOOM_MAX_PREEMPTIONS=3      explores deeper (default 2)
#   SHUTTLE_ITERATIONS=100000   samples more schedules of each model (default 4000)
#   MODELS=ring                 only models whose path contains this
#   LOOM_PROFILE=test           builds for development instead of as released
set -euo pipefail
cd "$(dirname "$0")/.."
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-2}" SHUTTLE_ITERATIONS="${SHUTTLE_ITERATIONS:-4000}"
LOOM_PROFILE="${LOOM_PROFILE:-bench}"
export SHUTTLE_SILENCE_WARNINGS=1 RUST_BACKTRACE=0
unset MUTANT

# mutant : models that must catch it : checkers that must (both when empty)
mutants="
queue:models::queue::after_intake
hook:models::queue::hooks
wait:models::queue::waiting
ring:models::ring::what_is
snapshot:models::swap
snapshot:models::ring::no_subscription
reply:models::slot::a_reply
credits:models::slot::credits
restart:models::threads::restart
drain:models::threads::a_drain
late:models::threads::no_thread
hang:models::hanging::every_seat
hang:models::hanging::callers
publish:models::console::requests
report:models::console::no_report
asked:models::console::requests
"

# The wallet's (models/wallet): its own sources, over a kernel made of the checker's primitives.
wallet_mutants="
flight:one_key
land:one_key
lane:debits_of
sent:late_waiters
pin:an_unknown
balance:a_balance
leave:a_drain
"

# The log's and its witness's (models/tlog), likewise.
tlog_mutants="
ack:the_index
head:the_index
batch:a_witness
"

# What ron-auth follows of an issuer (models/auth), likewise.
auth_mutants="
older:requests_are_judged
source:a_reload
"

# No mutant may stand in the code without being asked for here.
standing() {
  grep -rhoE '#\[cfg\(mutant = "[a-z]+"\)\]' "$1" --include='*.rs' | grep -oE '"[a-z]+"' | tr -d '"' | sort -u
}
known() {
  for name in $(standing "$1"); do
    grep -q "^$name:" <<<"$2" || { echo "the mutant \`$name\` is in $1 but not in scripts/loom.sh" >&2; exit 1; }
    echo "$name"
  done
}
kernel_names=$(known crates/ron-kernel/src "$mutants")
wallet_names=$(known crates/svc-wallet/src "$wallet_mutants")
tlog_names=$( (known crates/ron-tlog/src "$tlog_mutants"; known crates/ron-service/src/log_host "$tlog_mutants") | sort -u)
auth_names=$(known crates/ron-auth/src "$auth_mutants")
cfgs=()
for name in $kernel_names; do cfgs+=(--cfg "mutant=\"$name\""); done

executable() { grep -oE '"executable":"[^"]+"' | tail -n 1 | cut -d '"' -f 4; }

# Only the crate itself is built with these flags, so its dependencies are shared with the release
# build (`bench` is release with the test harness).
build_kernel() {
  cargo rustc --quiet --locked -p ron-kernel --lib --profile "$LOOM_PROFILE" --message-format json -- \
    -C debug-assertions=on --cfg "$1" "${cfgs[@]}" | executable
}

# Here the checker stands in a dependency too, so the build scripts of the two crates are told.
build_wallet() {
  RON_CHECKER=$1 RON_MUTANTS=$(tr '\n' ' ' <<<"$wallet_names") \
    cargo test --quiet --locked -p svc-wallet-models --test models --profile "$LOOM_PROFILE" --no-run --message-format json | executable
}

build_tlog() {
  RON_CHECKER=$1 RON_MUTANTS=$(tr '\n' ' ' <<<"$tlog_names") \
    cargo test --quiet --locked -p ron-tlog-models --test models --profile "$LOOM_PROFILE" --no-run --message-format json | executable
}

build_auth() {
  RON_CHECKER=$1 RON_MUTANTS=$(tr '\n' ' ' <<<"$auth_names") \
    cargo test --quiet --locked -p ron-auth-models --test models --profile "$LOOM_PROFILE" --no-run --message-format json | executable
}

# checker, binary, its models, the mutants they catch
run() {
  local start=$SECONDS
  timeout 3600 "$2" --test-threads 2 "$3" | grep -E '^test '
  echo "== $1: models hold, $((SECONDS - start)) s (preemptions $LOOM_MAX_PREEMPTIONS, schedules $SHUTTLE_ITERATIONS)"
  for line in $4; do
    local name=${line%%:*} model=${line#*:} status=0
    case $model in *"${MODELS:-}"*) ;; *) continue ;; esac
    # A checker may abort when it finds a deadlock; the shell's word about that is not for people.
    { MUTANT=$name timeout 120 "$2" --test-threads 1 "$model" || status=$?; } >/dev/null 2>&1
    case $status in
    0) echo "$1: $model did not catch the mutant \`$name\`" >&2 && exit 1 ;;
    124) echo "$1: the mutant \`$name\` did not end in $model" >&2 && exit 1 ;;
    *) echo "mutant caught by $1: $name in $model" ;;
    esac
  done
}

for checker in loom shuttle; do
  start=$SECONDS
  for part in kernel wallet tlog auth; do
    built=$("build_$part" "$checker")
    cp "$built" "$built-$checker"
    declare "$part=$built-$checker"
  done
  echo "== $checker: built in $((SECONDS - start)) s"
  # shellcheck disable=SC2154 # declared above, by name
  run "$checker" "$kernel" "models::${MODELS:-}" "$mutants"
  # shellcheck disable=SC2154
  run "$checker" "$wallet" "${MODELS:-}" "$wallet_mutants"
  # shellcheck disable=SC2154
  run "$checker" "$tlog" "${MODELS:-}" "$tlog_mutants"
  # shellcheck disable=SC2154
  run "$checker" "$auth" "${MODELS:-}" "$auth_mutants"
done
