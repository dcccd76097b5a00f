#!/usr/bin/env bash
# The console's page: `ui.sh build` writes ui/dist anew, `ui.sh check` fails when ui/dist is not
# what the sources give.
set -euo pipefail
cd "$(dirname "$0")/../crates/svc-admin/ui"
[ -x node_modules/.bin/vite ] || npm ci --no-audit --no-fund --silent
case "${1:-check}" in
  build) npm run --silent build ;;
  check)
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
    npm run --silent test
    node_modules/.bin/tsc --noEmit
    node_modules/.bin/vite build --logLevel warn --outDir "$out" --emptyOutDir
    diff -r "$out" dist || { echo "ui/dist is not what the sources give: run scripts/ui.sh build" >&2; exit 1; }
    echo "ui/dist is what the sources give"
    ;;
  *) echo "usage: ui.sh build | check" >&2; exit 2 ;;
esac
