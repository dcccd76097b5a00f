#!/usr/bin/env bash
# Builds the same source twice, in two directories with different names, and compares the binaries byte by byte.
# A long lane: two whole builds. PACKAGE=ron-kms-bin BIN=ron-kms PROFILE=dev is shorter; the default is every binary of
# the release profile.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${PROFILE:-release}
package=${PACKAGE:-}
bins=${BIN:-ron ron-kms svc-passport ron-ledger svc-wallet svc-rewarder svc-admin}
out=release
[ "$profile" = release ] || out=debug
work=$(mktemp -d "${TMPDIR:-/tmp}/reproducible.XXXXXX")
trap 'rm -rf "$work"' EXIT
cargo_home=${CARGO_HOME:-$HOME/.cargo}
select=(--workspace --bins)
[ -z "$package" ] || select=(--package "$package")

# What is committed, and nothing else, under two names of different length.
for place in one another-place-with-a-longer-name; do
  mkdir "$work/$place"
  git archive HEAD | tar -x -C "$work/$place"
  echo "building in $work/$place"
  (
    cd "$work/$place"
    map="$PWD=/ron"
    export SOURCE_DATE_EPOCH=0 CARGO_INCREMENTAL=0 CARGO_TARGET_DIR="$PWD/target"
    export RUSTFLAGS="--remap-path-prefix=$map --remap-path-prefix=$cargo_home=/cargo"
    export CFLAGS="-ffile-prefix-map=$map -ffile-prefix-map=$cargo_home=/cargo"
    cargo build --locked --quiet --profile "$profile" "${select[@]}"
    for bin in $bins; do
      cp "target/$out/$bin" "$work/$place.$bin"
    done
  )
  rm -rf "${work:?}/$place"
done

differ=0
for bin in $bins; do
  if cmp "$work/one.$bin" "$work/another-place-with-a-longer-name.$bin"; then
    printf '%s  %s\n' "$(sha256sum <"$work/one.$bin" | cut -d' ' -f1)" "$bin"
  else
    differ=1
  fi
done
if [ "$differ" = 0 ]; then
  echo "reproducible: the binaries of both places are the same"
else
  echo "not reproducible" >&2
fi
exit "$differ"
