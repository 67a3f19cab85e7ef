#!/usr/bin/env bash
# Runs every check that a change has to pass, cheapest first: lint, the tests of the workspace,
# loom's models, the simulation, and the instructions of the hot paths. Tests that need RDMA verbs
# are in scripts/verbs-test.sh. Fails as well if the tests leave a process or a file in shared
# memory behind.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  -h | --help) sed -n '2,${ /^#/!q; s/^# \{0,1\}//; p; }' scripts/test.sh && exit ;;
esac

# The run has a /dev/shm of its own, so all files in it belong to this run.
if [ "${1:-}" != --inside ]; then
  # What is missing is installed with all rights that the caller has.
  scripts/deps.sh build deny count peers php
  exec scripts/own-shm.sh scripts/test.sh --inside
fi

# Inherited by all that the tests start, so that what is left of them can be told from the rest.
export LOCH_TEST_RUN="$$-$EPOCHSECONDS"

run() {
  printf '+ %s\n' "$*"
  "$@"
}

# The processes of this run that still live, one a line.
left_processes() {
  local environ
  grep -lzxsF "LOCH_TEST_RUN=$LOCH_TEST_RUN" /proc/[0-9]*/environ |
    while read -r environ; do
      printf '%s ' "${environ//[!0-9]/}"
      tr '\0' ' ' <"${environ%environ}cmdline" && echo
    done 2>/dev/null | grep -v sccache || true # The compiler's cache may stay.
}

nothing_runs() {
  local processes
  export -n LOCH_TEST_RUN
  for _ in $(seq 50); do
    processes=$(left_processes)
    [ -n "$processes" ] || break
    sleep 0.1
  done
  [ -z "$processes" ] || printf 'left running:\n%s\n' "$processes"
  [ -z "$processes" ]
}

scripts/lint.sh
run scripts/own-shm-test.sh
# $LOCH_FEATURES: features to test with, of all packages.
run cargo test --workspace --locked ${LOCH_FEATURES:+--features "$LOCH_FEATURES"}
run scripts/clients.sh
loom=$(run cargo test -p loch-fabric -p loch-engines --locked --lib \
  --features loch-fabric/loom,loch-engines/loom loom | tee >(cat >&2))
# A name that no test has any more is no error of cargo's.
[ "$(grep -c '^test result: ok\. [1-9]' <<<"$loom")" -eq 2 ] || {
  echo "test: of two packages not both have tests for loom" >&2
  exit 1
}
run scripts/simulate.sh test
run scripts/instructions.sh
run nothing_runs
echo "test: all passed, $SECONDS s"
