#!/usr/bin/env bash
# Tests the check for files that are left in shared memory, scripts/own-shm.sh: it finds every file
# that the command leaves, and ignores files that others make meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
# A name of this process alone, even if others run this test.
tag="own-shm-test-$$"
trap 'rm -rf "$work" /dev/shm/*"$tag"*' EXIT
checks=0

fail() {
  echo "own-shm-test: $*" >&2
  exit 1
}

# The check finds the name of the file that the command leaves, and reports a status that is not 0.
found() { # NAME SCRIPT
  local said status=0
  said=$(scripts/own-shm.sh bash -euc "$2" 2>&1) || status=$?
  [[ $status -ne 0 && $said == *"/dev/shm/$1"* ]] || fail "not found: $1; status $status: $said"
  rm -rf "/dev/shm/${1:?}"
  checks=$((checks + 1))
}

# A command which leaves nothing passes, while another process makes a file of this name.
alone() { # NAME
  local said status=0 go="$work/go" done="$work/done"
  rm -f "$go" "$done"
  {
    until [ -e "$go" ]; do sleep 0.02; done
    touch "/dev/shm/$1" "$done"
  } &
  said=$(scripts/own-shm.sh bash -euc "echo x >/dev/shm/loch-passing-$tag
    touch $go
    until [ -e $done ]; do sleep 0.02; done
    rm /dev/shm/loch-passing-$tag" 2>&1) || status=$?
  wait
  [ "$status" -eq 0 ] || fail "tripped over /dev/shm/$1 of somebody else: $said"
  rm "/dev/shm/$1"
  checks=$((checks + 1))
}

both() { # A command that fails is what failed, with its status.
  local status=0
  scripts/own-shm.sh bash -c 'exit 7' || status=$?
  [ "$status" -eq 7 ] || fail "status $status, not the command's"
  alone "other-$tag"
  found "loch-$tag" "echo x >/dev/shm/loch-$tag"
  found "loch-$tag/inner" "mkdir /dev/shm/loch-$tag && echo x >/dev/shm/loch-$tag/inner"
  checks=$((checks + 1))
}

# Help is no command, and a request for help is no error.
[[ $(scripts/own-shm.sh --help) == "Runs a command, and fails"*"LOCH_OWN_SHM=no chooses this." ]] ||
  fail "--help says: $(scripts/own-shm.sh --help 2>&1)"
checks=$((checks + 1))

both
# With a /dev/shm of its own, names do not matter.
if [[ $(scripts/own-shm.sh true 2>&1) != *"only files with Loch's names"* ]]; then
  alone "loch-foreign-$tag"
  found "any-name-$tag" "echo x >/dev/shm/any-name-$tag"
  export LOCH_OWN_SHM=no
  both
fi
echo "own-shm-test: $checks checks"
