#!/usr/bin/env bash
# Checks the protocol's models: every interleaving of small configurations.
#
#   scripts/model.sh [ARG…]     --large: larger ones too, which take minutes and gigabytes;
#                               --threads N; the beginnings of names of some: docs/model.md
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  -h | --help) sed -n '2,${ /^#/!q; s/^# \{0,1\}//; p; }' scripts/model.sh && exit ;;
esac

exec cargo run --release --locked --quiet -p loch-models -- check "$@"
