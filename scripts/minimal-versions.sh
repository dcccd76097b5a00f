#!/usr/bin/env bash
# Do the lower bounds in Cargo.toml hold? Resolves every direct dependency to the oldest version that it admits, in a
# copy, and checks that the workspace still compiles. A long lane: nothing of the usual build is reused.
#   MODE=minimal-versions   also the oldest of what dependencies depend on (their bounds are not ours to mend)
#   TARGET=DIR              keeps the build in DIR, for a second run
set -euo pipefail
cd "$(dirname "$0")/.."

mode=${MODE:-direct-minimal-versions}
work=$(mktemp -d "${TMPDIR:-/tmp}/minimal.XXXXXX")
trap 'rm -rf "$work"' EXIT
git archive HEAD | tar -x -C "$work"
cd "$work"
# The resolver's flag is one of nightly compilers; only the resolver runs with it, never the compiler.
RUSTC_BOOTSTRAP=1 cargo update --quiet -Z "$mode"
echo "oldest versions resolved; those that differ from Cargo.lock:"
diff <(cd "$OLDPWD" && cargo metadata --locked --format-version 1 --no-deps >/dev/null && git show HEAD:Cargo.lock | awk '/^name/{n=$3} /^version/{print n, $3}' | sort -u) \
  <(awk '/^name/{n=$3} /^version/{print n, $3}' Cargo.lock | sort -u) | grep '^>' || true
CARGO_TARGET_DIR=${TARGET:-$work/target} cargo check --quiet --locked --workspace --all-targets
echo "minimal versions: the workspace compiles with them"
