#!/usr/bin/env bash
# Counts the instructions of the hot paths, by callgrind, and holds them to the bounds in
# tests/instructions/bounds.txt.
#
#   scripts/instructions.sh [check]    fails if a path is over its bound
#   scripts/instructions.sh set        writes the bounds anew, a few per cent above the counts
#
# Without valgrind, and where it cannot be installed, nothing is counted; with CI set that fails.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-check} in
  check | set) ;;
  *) sed -n '2,${ /^#/!q; s/^# \{0,1\}//; p; }' "$0" >&2 && exit 2 ;;
esac
scripts/deps.sh build count
if [ -z "${CI:-}" ] && ! command -v valgrind >/dev/null; then
  echo "instructions: no valgrind, so nothing is counted" >&2
  exit
fi
cargo run --release --locked --quiet -p loch-instructions -- "${1:-check}"
