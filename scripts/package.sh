#!/usr/bin/env bash
# Debian packages from binaries that are built: one per service and one for `ron`, into target/package.
# Needs cargo-deb (scripts/setup.sh installs it). PROFILE=dev packs the binaries of `cargo build --workspace --bins`,
# FAST=1 compresses less.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${PROFILE:-release}
target=${CARGO_TARGET_DIR:-target}
bin=$target/$profile
[ "$profile" != dev ] || bin=$target/debug
tool=$PWD/target/tools/bin/cargo-deb
[ -x "$tool" ] || tool=$(command -v cargo-deb) || {
  echo "cargo-deb is missing: run scripts/setup.sh" >&2
  exit 1
}
services="ron-kms svc-passport ron-ledger svc-wallet svc-rewarder svc-admin"
for name in ron $services; do
  [ -x "$bin/$name" ] || {
    echo "$bin/$name is missing: cargo build --release --workspace --bins" >&2
    exit 1
  }
done

# Manual pages and completions come from the command lines themselves.
made=target/package
rm -rf "$made"
mkdir -p "$made/completions"
"$bin/ron" man --dir "$made/man"
for name in ron $services; do
  for shell in bash zsh fish; do
    "$bin/ron" completions "$shell" --of "$name" >"$made/completions/$name.$shell"
  done
done

# The time in archives, where nobody has set one: that of the last commit, so that the same tree gives the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
for name in ron $services; do
  package=$name
  [ "$name" = ron ] || package=$name-bin
  CARGO_TARGET_DIR=$target "$tool" deb --no-build --locked --quiet --strip --profile "$profile" \
    ${FAST:+--fast} --package "$package" --output "$made/"
done
ls -l "$made"/*.deb
