#!/usr/bin/env bash
# A bill of materials of the binaries in CycloneDX 1.6 (JSON), on standard output or into the file that is named.
# FEATURES="ron-kms/pkcs11" adds what is off by default. The same tree gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
if [ $# = 0 ]; then
  exec python3 scripts/sbom.py
fi
python3 scripts/sbom.py >"$1.new"
mv "$1.new" "$1"
