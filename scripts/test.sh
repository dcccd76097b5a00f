#!/usr/bin/env bash
# Everything: installs, format, lints, unit and end-to-end tests, models, licences.
# `scripts/test.sh quick` stops before the end-to-end tests.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n=== %s (%s s)\n' "$1" "$SECONDS"; }

# What all builds below take together in an empty target/. It is better to know before an hour is spent.
need_gb=15
mkdir -p target
free_gb=$(($(df --output=avail -k . | tail -1) / 1024 / 1024))
used_gb=$(($(du -sk target | cut -f1) / 1024 / 1024))
if ((free_gb + used_gb < need_gb)); then
  echo "test.sh: the builds take about $need_gb GB; $free_gb GB are free here, and target/ has $used_gb GB: free some space" >&2
  exit 1
fi

step "install"
./scripts/setup.sh
export PATH="$PWD/target/tools/bin:$PATH"

step "format"
cargo fmt --all -- --check

step "scripts"
shellcheck --severity warning scripts/*.sh .ci/run
shellcheck --severity warning packaging/ron-spread packaging/debian/*

# The whole workspace with every feature, in all steps: with other packages or features everything would be built again.
everything=(--release --locked --workspace --all-features)

step "build"
# Examples too: a test starts one, and `--test` below does not build them.
cargo build "${everything[@]}" --bins --lib --examples

step "lints"
cargo clippy --release --locked --workspace -- -D warnings
cargo clippy "${everything[@]}" --all-targets -- -D warnings

step "unit tests"
# More threads than processors, because many tests wait for services, databases and devices.
RUSTC_WORKSPACE_WRAPPER="$PWD/scripts/rustc-unoptimised.sh" \
  cargo test "${everything[@]}" --lib --bins --no-run --message-format json-render-diagnostics >target/unit-tests.json
cargo xtask suites target/unit-tests.json --threads "$(($(nproc) + 1))"

step "fuzz targets compile"
cargo check --release --locked --manifest-path fuzz/Cargo.toml --target-dir target

[ "${1:-all}" = quick ] && exit 0

step "end-to-end tests"
export RON_TEST_PYTHON="$PWD/target/test-venv/bin/python"
cargo test "${everything[@]}" --test '*' --no-run --message-format json-render-diagnostics >target/end-to-end-tests.json
cargo xtask suites target/end-to-end-tests.json --threads 3

step "instructions of the hot paths"
cargo xtask instructions

step "API fuzzer"
cargo xtask api-fuzz --phases fuzzing --examples 8 --seed 1

step "user interface is built from its sources"
cargo xtask ui check

step "SDKs"
cargo xtask sdk check

step "loom models"
cargo xtask loom

step "simulation"
cargo xtask sim

step "licences, bans, sources"
cargo deny --offline check bans licenses sources
# Needs a database, which is not part of the tree: ADVISORY_DB=PATH.
cargo xtask advisories

step "done"
