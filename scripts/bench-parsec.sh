#!/usr/bin/env bash
# P-256 signatures in a SoftHSM token through a PARSEC service, for comparison with
# scripts/bench-kms.sh (run both after each other, on a machine that does nothing else).
# Needs cmake, libclang and softhsm2; LIBCLANG_PATH says where libclang.so is when it is not found.
# `scripts/bench-parsec.sh [seconds per figure, 10]`
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
target=${CARGO_TARGET_DIR:-$PWD/target}/parsec
for tool in cmake softhsm2-util; do
  command -v "$tool" >/dev/null || { echo "$tool is missing: apt-get install cmake libclang-dev softhsm2" >&2; exit 1; }
done

# A libclang that came alone (as the one of PyPI) has no headers of its own.
export BINDGEN_EXTRA_CLANG_ARGS=${BINDGEN_EXTRA_CLANG_ARGS:--I$(cc -print-file-name=include)}
parsec=${RON_PARSEC:-$target/tools/bin/parsec}
[ -x "$parsec" ] || cargo install parsec-service --version 1.5.0 --locked --root "$target/tools" --target-dir "$target" \
  --features pkcs11-provider,unix-peer-credentials-authenticator
cargo build --release --manifest-path benches/rivals/parsec/Cargo.toml --target-dir "$target"

work=$(mktemp -d)
service=
trap '[ -z "$service" ] || kill "$service" 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir "$work/tokens"
printf 'directories.tokendir = %s\nobjectstore.backend = file\nlog.level = ERROR\n' "$work/tokens" >"$work/softhsm2.conf"
export SOFTHSM2_CONF=$work/softhsm2.conf
slot=$(softhsm2-util --init-token --free --label bench --so-pin 12345678 --pin 648219 | grep -o '[0-9]*$')
cat >"$work/config.toml" <<CONF
[core_settings]
log_level = "error"
allow_root = true
[listener]
listener_type = "DomainSocket"
timeout = 2000
socket_path = "$work/parsec.sock"
[authenticator]
auth_type = "UnixPeerCredentials"
[[key_manager]]
name = "keys"
manager_type = "SQLite"
store_path = "$work/keys.sqlite3"
[[provider]]
provider_type = "Pkcs11"
key_info_manager = "keys"
library_path = "/usr/lib/softhsm/libsofthsm2.so"
slot_number = $slot
user_pin = "648219"
CONF
"$parsec" -c "$work/config.toml" &
service=$!
for _ in $(seq 100); do
  [ -S "$work/parsec.sock" ] && break
  sleep 0.1
done
[ -S "$work/parsec.sock" ] || { echo "PARSEC did not start" >&2; exit 1; }

export PARSEC_SERVICE_ENDPOINT=unix:$work/parsec.sock
echo "## The same kind of token through PARSEC 1.5"
"$target/release/ron-rival-parsec" "$seconds" 1 4 16
