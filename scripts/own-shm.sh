#!/usr/bin/env bash
# Runs a command, and fails if it leaves a file in shared memory behind, whatever its name.
#
#   scripts/own-shm.sh COMMAND [ARG…]
#
# The command gets a /dev/shm of its own, if that is possible: as root, or as a user who may make
# namespaces. So no file of others is there, and all files of the command are. If it is not
# possible, the script looks in the common /dev/shm for new files of this user that have one of
# Loch's names; LOCH_OWN_SHM=no chooses this.
set -euo pipefail

say() { echo "own-shm: $*" >&2; }

# Prefixes of the names of files and folders.
in_shm() { # [PREFIX]
  find /dev/shm -mindepth 1 -path "/dev/shm/${1:-}*" "${@:2}" 2>/dev/null | sort
}

# Runs the command, and fails as it does, or if it leaves a file that was not there before.
watch() { # FIND_ARG… -- COMMAND…
  local looked=() before left status=0
  while [ "$1" != -- ]; do
    looked+=("$1")
    shift
  done
  before=$(in_shm "${looked[@]}")
  "${@:2}" || status=$?
  left=$(comm -13 <(echo "$before") <(in_shm "${looked[@]}"))
  if [ -n "$left" ]; then
    printf 'left in shared memory:\n%s\n' "$left"
    [ "$status" -ne 0 ] || status=1
  fi
  return "$status"
}

help() { sed -n '2,${ /^#/!q; s/^# \{0,1\}//; p; }' "$0"; }

case ${1:-} in
  -h | --help) help && exit ;;
  "") help >&2 && exit 2 ;;
esac
case ${LOCH_OWN_SHM:-try} in
  inside)
    mount -t tmpfs -o mode=1777,nosuid,nodev loch-test /dev/shm
    # A user other than root has the rights to that in a namespace; the command has none of them.
    drop=()
    [ "$(id -u)" -eq 0 ] || drop=(setpriv --inh-caps=-all --ambient-caps=-all)
    watch "" -- env -u LOCH_OWN_SHM "${drop[@]}" "$@"
    ;;
  no)
    watch loch -user "$(id -u)" -- "$@"
    ;;
  try)
    own=(unshare --mount)
    [ "$(id -u)" -eq 0 ] || own=(unshare --user --map-current-user --keep-caps --mount)
    if "${own[@]}" mount -t tmpfs loch-test /dev/shm 2>/dev/null; then
      exec env LOCH_OWN_SHM=inside "${own[@]}" "$0" "$@"
    fi
    if [ "${CI:-}" = true ]; then
      say "FAILED: CI is to look at a /dev/shm of its own, and there cannot be one here"
      exit 1
    fi
    say "there cannot be a /dev/shm of its own here: only files with Loch's names are looked for"
    exec env LOCH_OWN_SHM=no "$0" "$@"
    ;;
  *)
    say "LOCH_OWN_SHM is '$LOCH_OWN_SHM', it may be 'no'"
    exit 2
    ;;
esac
