#!/usr/bin/env bash
# Measures transfers: through the wallet over HTTP, in PostgreSQL on the same disk in the same run, and in the ledger
# in process; writes docs/bench/ledger.md. The machine should have nothing else to do.
# `scripts/bench-ledger.sh [seconds per figure, 10] [entries already there, 10000000] [directory on the disk]`
#   PROFILE=dev      builds for development (to try the script)
#   CLIENTS=1,10     other numbers of clients
#   OUT=file         writes there instead
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10} entries=${2:-10000000} dir=${3:-target/bench-ledger}
profile=${PROFILE:-release} clients=${CLIENTS:-1,10,100,1000} out=${OUT:-docs/bench/ledger.md}
target=${CARGO_TARGET_DIR:-$PWD/target}
built=$target/$([ "$profile" = dev ] && echo debug || echo "$profile")
pg=${PG_BIN:-$(ls -d /usr/lib/postgresql/15/bin 2>/dev/null || true)}
[ -x "$pg/postgres" ] || { echo "PostgreSQL 15 is missing: apt-get install postgresql-15" >&2; exit 1; }

cargo build --profile "$profile" --locked --workspace --bins
cargo build --profile "$profile" --locked -p ron-ledger --examples
cargo build --profile "$profile" --manifest-path benches/rivals/Cargo.toml --target-dir "$target/rivals" --bin rival-pg
rm -rf "$dir"
mkdir -p "$dir/pg"
dir=$(cd "$dir" && pwd)
ulimit -n 8192

# PostgreSQL refuses to run as root.
as_pg=()
if [ "$(id -u)" = 0 ]; then
  chown postgres "$dir/pg"
  as_pg=(setpriv --reuid postgres --regid postgres --clear-groups)
fi
socket=$(mktemp -d)
chmod 777 "$socket"
stop() {
  "${as_pg[@]}" "$pg/pg_ctl" -D "$dir/pg/data" -m fast -w stop >/dev/null 2>&1 || true
  rm -rf "$socket" "$dir"
}
trap stop EXIT

wallet=$("$built/load" wallet --seconds "$seconds" --clients "$clients" --dir "$dir/fleet")
rm -rf "$dir/fleet"

(cd "$dir/pg" && "${as_pg[@]}" "$pg/initdb" -D "$dir/pg/data" -A trust -U postgres >/dev/null)
(cd "$dir/pg" && "${as_pg[@]}" "$pg/pg_ctl" -D "$dir/pg/data" -w -l "$dir/pg/log" -o "-c listen_addresses='' \
  -c unix_socket_directories='$socket' -c fsync=on -c synchronous_commit=on -c shared_buffers=1GB -c max_wal_size=8GB \
  -c checkpoint_timeout=30min -c wal_compression=off" start >/dev/null)
rival=$("$target/rivals/$(basename "$built")/rival-pg" "host=$socket user=postgres dbname=postgres" "$seconds" ${clients//,/ })
(cd "$dir/pg" && "${as_pg[@]}" "$pg/pg_ctl" -D "$dir/pg/data" -m fast -w stop >/dev/null)

inside=$("$built/examples/commits" "$dir/ledger" "$entries")

cat >"$out" <<EOF
# Figures of the wallet and the ledger

Written by \`scripts/bench-ledger.sh $seconds $entries\` on $(date -u +%F), $profile profile. The load generator runs on the same cores as the services.

## Through the wallet, over HTTP

Each client is a thread with one connection, its own account to debit and its own principals; policy, tokens, rate and
daily limits are on, and each answer is a receipt that is durable (fdatasync) in a verifiable log.

$wallet

## PostgreSQL 15, the same transfers on the same disk

In its best batched pattern (\`benches/rivals/src/bin/rival-pg.rs\`): four connections, each commits the waiting transfers with one call
of a prepared function over arrays. The callers are threads of the driver. These figures include no HTTP, no tokens, no limits and no
log of proofs, so compare them with the ledger in process as well as with the wallet.

$rival

## The ledger in process

The ledger had $entries transfers between 100,000 accounts before the first figure; every batch is one fdatasync.

$inside
EOF
echo "wrote $out"
