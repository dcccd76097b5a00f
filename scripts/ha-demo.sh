#!/usr/bin/env bash
# A database on three hosts with Patroni and etcd, two ledgers and a wallet, all on this machine at 127.0.7.1 to .3:
#   scripts/ha-demo.sh start DIR     makes and starts it in a new directory
#   scripts/ha-demo.sh stop DIR      stops it; the data stays in DIR
# The commands are those of docs/ha/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  sed -n '2,4s/^# *//p' "$0" >&2
  exit 2
}
[ $# = 2 ] || usage
D=$(realpath -m "$2")
export D

# The commands of one section of the page.
section() {
  awk -v title="## $1" '
    /^## / {inside = $0 == title}
    /^<!-- run by: pages -->$/ {run = inside; next}
    /^```/ {code = run; run = 0; next}
    code' docs/ha/README.md
}

case $1 in
  start)
    [ ! -e "$D" ] || { echo "ha-demo.sh: $D exists: name a new directory" >&2; exit 1; }
    eval "$(section 'Set it up')"
    echo "running; the wallet's API: $D/ron/run/svc-wallet/api.sock"
    ;;
  stop)
    eval "$(section 'Stop it')"
    ;;
  *) usage ;;
esac
