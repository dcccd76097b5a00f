#!/usr/bin/env bash
# Runs the models of ron-kernel's protocols twice: with loom (all interleavings of up to 5 threads)
# and with shuttle (sampled interleavings of more). Then each mutant, a version that is wrong on
# purpose: both checkers must fail on it, or this script does.
#   LOOM_MAX_PREEMPTIONS=3      explores deeper (default 2)
#   SHUTTLE_ITERATIONS=100000   samples more schedules of each model (default 4000)
#   MODELS=ring                 only models whose path contains this
set -euo pipefail
cd "$(dirname "$0")/.."
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-2}" SHUTTLE_ITERATIONS="${SHUTTLE_ITERATIONS:-4000}"
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

# No mutant may stand in the code without being asked for here.
cfgs=()
for name in $(grep -rhoE '#\[cfg\(mutant = "[a-z]+"\)\]' crates/ron-kernel/src --include='*.rs' | grep -oE '"[a-z]+"' | tr -d '"' | sort -u); do
  if ! grep -q "^$name:" <<<"$mutants"; then
    echo "the mutant \`$name\` is in the code but not in scripts/loom.sh" >&2
    exit 1
  fi
  cfgs+=(--cfg "mutant=\"$name\"")
done

# Only the crate itself is built with these flags, so its dependencies are shared with the release
# build (`bench` is release with the test harness).
build() {
  cargo rustc --quiet --locked -p ron-kernel --lib --profile bench --message-format json -- \
    -C debug-assertions=on --cfg "$1" "${cfgs[@]}" |
    grep -oE '"executable":"[^"]+"' | tail -n 1 | cut -d '"' -f 4
}

for checker in loom shuttle; do
  start=$SECONDS
  built=$(build "$checker")
  binary="$built-$checker"
  cp "$built" "$binary"
  echo "== $checker: built in $((SECONDS - start)) s"
  start=$SECONDS
  timeout 3600 "$binary" --test-threads 2 "models::${MODELS:-}" | grep -E '^test (models|result)'
  echo "== $checker: models hold, $((SECONDS - start)) s (preemptions $LOOM_MAX_PREEMPTIONS, schedules $SHUTTLE_ITERATIONS)"
  for line in $mutants; do
    name=${line%%:*} model=${line#*:}
    case $model in *"${MODELS:-}"*) ;; *) continue ;; esac
    status=0
    # A checker may abort when it finds a deadlock; the shell's word about that is not for people.
    { MUTANT=$name timeout 120 "$binary" --test-threads 1 "$model" || status=$?; } >/dev/null 2>&1
    case $status in
    0) echo "$checker: $model did not catch the mutant \`$name\`" >&2 && exit 1 ;;
    124) echo "$checker: the mutant \`$name\` did not end in $model" >&2 && exit 1 ;;
    *) echo "mutant caught by $checker: $name in $model" ;;
    esac
  done
done
