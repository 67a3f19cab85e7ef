#!/usr/bin/env bash
# Runs every check of the sources that does not run them.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  -h | --help) sed -n '2,${ /^#/!q; s/^# \{0,1\}//; p; }' scripts/lint.sh && exit ;;
esac

run() {
  printf '+ %s\n' "$*"
  "$@"
}

scripts/deps.sh build deny
run cargo fmt --all --check
run cargo clippy --workspace --all-targets --locked -- -D warnings
run cargo run --quiet --locked -p xtask -- tidy
run cargo deny --locked check licenses bans sources
