#!/usr/bin/env bash
# Runs the tests of the crate with unsafe code under a sanitizer of the nightly compiler.
#
#   scripts/sanitize.sh [address|thread]
#
# `thread` builds the standard library as well and needs the component rust-src: without that,
# every mutex and channel of std is reported as a race. Neither sees into inline assembly.
set -euo pipefail
cd "$(dirname "$0")/.."

sanitizer=${1:-address}
target=$(uname -m)-unknown-linux-gnu
args=()
case $sanitizer in
  address) ;;
  thread)
    sources=$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library
    if [ ! -d "$sources" ]; then
      echo "sanitize: missing: rust-src. Run 'rustup component add rust-src --toolchain nightly'." >&2
      exit 1
    fi
    args=(-Zbuild-std)
    ;;
  *)
    echo "usage: scripts/sanitize.sh [address|thread]" >&2
    exit 2
    ;;
esac

set -x
# `--tests`: doc tests are linked by rustdoc, without the sanitizer.
RUSTFLAGS="-Zsanitizer=$sanitizer" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/sanitize-$sanitizer" \
  cargo +nightly test "${args[@]}" --locked --target "$target" -p loch-fabric --tests
