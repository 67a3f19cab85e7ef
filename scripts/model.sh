#!/usr/bin/env bash
# Checks the protocol's models: every interleaving of small configurations. With --large, larger
# ones too, which take minutes and gigabytes.
set -euo pipefail
cd "$(dirname "$0")/.."

exec cargo run --release --locked --quiet -p loch-models -- check "$@"
