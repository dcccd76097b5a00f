#!/usr/bin/env bash
# Both commands of the README on a machine with nothing on it: `cargo run --release -- up`, then scripts/test.sh.
# As root with debootstrap: in a fresh Debian (default); otherwise, or with MODE=home: on this system with an empty HOME,
# CARGO_HOME and target. Prints the time of each command and the disk it took. A long lane: about half an hour.
#   MODE=root|home      which kind of clean (root when it can be had)
#   COMMANDS="up test"  which commands
#   MIRROR=URL SUITE=bookworm   where Debian comes from
#   DRY=1               goes through the motions: makes the root, copies the source, compiles nothing
set -euo pipefail
cd "$(dirname "$0")/.."

commands=${COMMANDS:-up test}
mirror=${MIRROR:-http://deb.debian.org/debian}
suite=${SUITE:-bookworm}
mode=${MODE:-}
if [ -z "$mode" ]; then
  mode=home
  if [ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null; then mode=root; fi
fi
# What is mounted below is seen by this script alone, and gone with it.
if [ "$mode" = root ] && [ -z "${UNSHARED:-}" ]; then
  UNSHARED=1 exec unshare --mount --propagation private "scripts/$(basename "$0")"
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/clean-root.XXXXXX")
chmod 755 "$work"
say() { printf '=== %s (%s s)\n' "$1" "$SECONDS"; }

leave() {
  for place in proc dev sys; do
    if mountpoint -q "$work/$place"; then umount -l "$work/$place"; fi
  done
  [ -n "${KEEP:-}" ] || rm -rf --one-file-system "$work"
}
trap leave EXIT

# The toolchain is a user's own business; it is taken over as it is, without the registry that it has read.
rust=$(rustc --print sysroot)

# How this host reaches the network: proxies, and the authorities that it trusts.
network=()
for name in http_proxy https_proxy no_proxy SSL_CERT_FILE PIP_CERT NODE_EXTRA_CA_CERTS; do
  [ -z "${!name:-}" ] || network+=("$name=${!name}")
done

if [ "$mode" = root ]; then
  say "debootstrap $suite from $mirror"
  debootstrap --variant=minbase --include=ca-certificates,gcc,libc6-dev,git,make "$suite" "$work" "$mirror" >"$work.log" 2>&1 ||
    { tail -5 "$work.log" >&2; exit 1; }
  rm -f "$work.log"
  for place in proc dev sys; do
    mount --rbind "/$place" "$work/$place" || {
      echo "cannot mount /$place into the root; try MODE=home" >&2
      exit 1
    }
  done
  cp /etc/resolv.conf "$work/etc/resolv.conf"
  find /etc/apt/apt.conf.d -name '99*' -exec cp {} "$work/etc/apt/apt.conf.d/" \;
  if [ -d /usr/local/share/ca-certificates ]; then
    cp -r /usr/local/share/ca-certificates/. "$work/usr/local/share/ca-certificates/"
    chroot "$work" update-ca-certificates >/dev/null 2>&1 || true
  fi
  mkdir -p "$work/opt/rust" "$work/home/new"
  cp -a "$rust/." "$work/opt/rust/"
  home=$work/home/new
  inside() {
    chroot "$work" env -i HOME=/home/new CARGO_HOME=/home/new/.cargo TERM=dumb LANG=C.UTF-8 \
      PATH=/opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin "${network[@]}" bash -euc "cd /home/new/ron; $1"
  }
else
  home=$work
  inside() {
    env -i HOME="$work" CARGO_HOME="$work/.cargo" TERM=dumb LANG=C.UTF-8 PATH="$rust/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
      "${network[@]}" bash -euc "cd '$work/ron'; $1"
  }
fi
# A registry mirror that this host is told to use is a fact of its network too.
if [ -f "${CARGO_HOME:-$HOME/.cargo}/config.toml" ]; then
  install -D "${CARGO_HOME:-$HOME/.cargo}/config.toml" "$home/.cargo/config.toml"
fi
git clone --quiet . "$home/ron"
say "a clean $mode: $(inside 'cargo --version'), $(du -shx --exclude=proc --exclude=sys --exclude=dev "$work" 2>/dev/null | cut -f1) before"
[ -z "${DRY:-}" ] || exit 0

for command in $commands; do
  begun=$SECONDS
  case $command in
    up)
      say "cargo run --release -- up"
      inside '
        cargo run --release --quiet -- up --base-port 0 >up.log 2>up.err &
        pid=$!
        until grep -qx ready up.log; do
          kill -0 $pid 2>/dev/null || { cat up.log up.err >&2; exit 1; }
          sleep 1
        done
        ./target/release/ron demo --json
        # cargo waits for its child: the signal goes to the program itself.
        kill -TERM "$(sed -n "s/.*\"pid\": *\([0-9]*\).*/\1/p" "$HOME/.local/state/ron/run/endpoints.json")"
        wait $pid
      '
      ;;
    test)
      say "./scripts/test.sh"
      inside './scripts/test.sh'
      ;;
    *) echo "unknown command $command" >&2; exit 1 ;;
  esac
  printf 'clean-root: %s: %s s, source with target %s, cargo home %s\n' "$command" "$((SECONDS - begun))" \
    "$(du -sh "$home/ron" | cut -f1)" "$(du -sh "$home/.cargo" | cut -f1)"
done
