#!/usr/bin/env bash
# Runs the engines on the simulated fabric, under faults, and checks every history.
#
#   scripts/simulate.sh test               checks for every change: seeds, and planted bugs
#   scripts/simulate.sh soak [SECONDS]     new seeds, as many as fit into the time
#
# A seed that fails is printed with the command that runs it again.
set -euo pipefail
cd "$(dirname "$0")/.."

simulation() {
  cargo run --release --locked --quiet -p loch-simulation --features planted,example -- "$@"
}

case ${1:-} in
  test)
    simulation seeds --count 2000
    # The test of the test: bugs that are planted must be found.
    simulation plants --quick
    ;;
  soak)
    # Seeds that no run before had.
    simulation soak "${2:-60}" --from "$(date +%s)000000"
    ;;
  *)
    sed -n 's/^# \{0,1\}//; 2,7p' "$0" >&2
    exit 2
    ;;
esac
