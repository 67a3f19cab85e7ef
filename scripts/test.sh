#!/usr/bin/env bash
# Runs every check that a change has to pass, cheapest first: lint, the tests of the workspace,
# loom's models, the simulation, and the instructions of the hot paths. Tests that need RDMA verbs
# are in scripts/verbs-test.sh. A check that fails hides none of the others: the run goes on, and
# ends with a list of what has failed. Fails as well if the tests leave a process or a file in
# shared memory behind.
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

output=$(mktemp)
trap 'rm -f "$output"' EXIT
# The checks that have failed, and what they said of it, one a line.
failed=()

# Runs a check. What it prints is kept until the next one, in $output.
run() {
  printf '+ %s\n' "$*"
  if "$@" 2>&1 | tee "$output"; then return; fi
  failed+=("$*")
  local test
  # As cargo names them: tests, and the programs of tests in which some have failed.
  while read -r test; do failed+=("  $test"); done < <(
    sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p; s/^ +(`-p [^`]+`)$/\1/p' "$output")
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

# Of two packages both have tests for loom: a name that no test has any more is no error of cargo's.
loom_models() {
  local said
  said=$(cargo test -p loch-fabric -p loch-engines --locked --no-fail-fast --lib \
    --features loch-fabric/loom,loch-engines/loom loom | tee /dev/stderr) || return
  [ "$(grep -c '^test result: ok\. [1-9]' <<<"$said")" -eq 2 ]
}

run scripts/lint.sh
run scripts/own-shm-test.sh
# $LOCH_FEATURES: features to test with, of all packages.
run cargo test --workspace --locked --no-fail-fast ${LOCH_FEATURES:+--features "$LOCH_FEATURES"}
run scripts/clients.sh
run loom_models
run scripts/simulate.sh test
run scripts/instructions.sh
nothing_runs || failed+=("processes were left running, see above")
if [ ${#failed[@]} -gt 0 ]; then
  printf 'test: failed, %s s:\n' "$SECONDS"
  printf '  %s\n' "${failed[@]}"
  exit 1
fi
echo "test: all passed, $SECONDS s"
