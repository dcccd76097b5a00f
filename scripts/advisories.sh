#!/usr/bin/env bash
# Known vulnerabilities of the crates in Cargo.lock, by a copy of the RustSec advisory database:
#   git clone https://github.com/rustsec/advisory-db; scripts/advisories.sh advisory-db
# Nothing is fetched: a check that depends on what is new today is no part of the tests. Without a path it says
# 'not checked' and ends with 0.
set -euo pipefail

database=${1:-${ADVISORY_DB:-}}
if [ -z "$database" ]; then
  echo "advisories: not checked (name the path of an advisory database: scripts/advisories.sh PATH)"
  exit 0
fi
[ -d "$database/crates" ] || {
  echo "advisories: $database holds no advisory database (there is no $database/crates)" >&2
  exit 1
}
database=$(cd "$database" && pwd)
cd "$(dirname "$0")/.."
deny=$PWD/target/tools/bin/cargo-deny
[ -x "$deny" ] || deny=$(command -v cargo-deny) || {
  echo "cargo-deny is missing: run scripts/setup.sh" >&2
  exit 1
}

# cargo-deny looks for a git checkout below db-path, under the name that it gives to RustSec's own address.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checkout=$work/db/advisory-db-3157b0e258782691
mkdir "$work/db"
if [ -d "$database/.git" ]; then
  git clone --quiet "$database" "$checkout"
else
  cp -r "$database" "$checkout"
  git -C "$checkout" init --quiet
  git -C "$checkout" add --all
  git -C "$checkout" -c user.name=ron -c user.email=ron@localhost commit --quiet --message "as given"
fi
{
  cat deny.toml
  printf '\n[advisories]\ndb-path = "%s/db"\nyanked = "allow"\n' "$work"
} >"$work/deny.toml"
"$deny" --all-features --offline --config "$work/deny.toml" check advisories
echo "advisories: checked against $database, $(find "$database/crates" -name '*.md' | wc -l) advisories"
