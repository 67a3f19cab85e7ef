#!/usr/bin/env bash
# Runs the tests that need real RDMA verbs, in small virtual machines with Soft-RoCE: vm/README.md.
#
#   scripts/verbs-test.sh [TEXT]     all tests, or those whose name contains TEXT
#
# Ends with a table of all tests, and fails if one of them failed. If the emulator or the guests'
# kernel cannot be installed, all tests are skipped, with a line that begins with SKIPPED; with
# CI=true that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  -h | --help) sed -n '2,${ /^#/!q; s/^# \{0,1\}//; p; }' scripts/verbs-test.sh && exit ;;
esac
filter=${1:-}
# Twice the time of the longest test on a machine with nothing else to do.
row_seconds_max=420
names=() hosts=() commands=()

say() { echo "verbs-test: $*" >&2; }

# A test: a command that runs in each of several guests, and must succeed in all of them.
row() { # NAME HOSTS COMMAND [ARG…]
  [[ $1 == *"$filter"* ]] || return 0
  names+=("$1") hosts+=("$2") commands+=("$(printf '%q ' "${@:3}")")
}

# All commands here build the whole workspace, as `make test` does: cargo chooses the features of
# dependencies for all packages of a command together, so a command for some packages would build
# most of them again.
packages=(--workspace --features "loch-fabric/verbs loch/verbs loch-cli/verbs")
targets=(--lib --test conformance --test messages --test verbs --test two_hosts --test machines)

# Builds the tests, and the program that some of them run. `built` has a line for each: its folder
# below `crates`, its name, and its path.
build() {
  # The lines of cargo's JSON that describe test binaries.
  built=$(cargo test --quiet --locked --no-run --message-format=json-render-diagnostics \
    "${packages[@]}" "${targets[@]}" |
    { grep '"test":true},"features"' || true; } |
    sed -E 's|.*"manifest_path":"([^"]*)/Cargo.toml"(.*)|\2 \1|
      s|.*"name":"([^"]*)".*"executable":"([^"]*)".* (.*)|\3 \1 \2|')
}

# A test for each of these binaries of a package, run as cargo would run it, but one test at a time,
# and only those whose name contains FILTER.
rust() { # HOSTS FILTER FOLDER NAME…
  local name folder binary
  for name in "${@:4}"; do
    read -r folder _ binary < <(grep "/crates/$3 $name " <<<"$built") || {
      say "there is no test binary $name in crates/$3"
      exit 1
    }
    # Without a device the tests would check nothing: here that is a failure.
    row "$3: $name" "$1" env -C "$folder" CARGO_MANIFEST_DIR="$folder" LOCH_VERBS_TEST=1 \
      "$binary" --test-threads 1 "$2"
  done
}

# The counts that a test reports: tests passed and failed, or iterations. Both ends report the same.
counts() { # LOG
  sed -nE 's/^host[0-9]: //
    s/^test result: [^.]*\. ([0-9]+ passed; [0-9]+ failed).*/\1/p
    s/^([0-9]+ checks)$/\1/p
    s/^([0-9]+) iters in .*/\1 iterations/p
    s/^ *[0-9]+ +([0-9]+) +[0-9.]+ +[0-9.].*/\1 iterations/p' "$1" | sort -u | paste -sd , -
}

scripts/deps.sh build
if ! scripts/deps.sh verbs || ! vm/prepare.sh >/dev/null; then
  if [ "${CI:-}" = true ]; then
    say "FAILED: CI is to run these tests, and QEMU or the guests' kernel cannot be had; see above"
    exit 1
  fi
  echo "SKIPPED: the tests on real verbs: QEMU or the guests' kernel cannot be had here; see above"
  exit 0
fi

# Tests of the feature that need no device: the control plane, hostile set-ups.
cargo clippy --quiet --locked "${packages[@]}" --all-targets -- -D warnings
build
for crate in fabric loch; do
  read -r folder _ binary < <(grep "/crates/$crate loch" <<<"$built")
  env -C "$folder" CARGO_MANIFEST_DIR="$folder" "$binary" --quiet
done
loch=${CARGO_TARGET_DIR:-target}/debug/loch

# shellcheck disable=SC2016 # The guest's shell expands it.
row "device" 1 bash -c 'for want in PORT_ACTIVE ATOMIC_HCA "::ffff:10.9.0.1, RoCE v2"; do
  ibv_devinfo -v -d rxe0 | grep -F "$want" || { echo "the device lacks: $want"; exit 1; }
done; echo "3 checks"'
# The longest with one guest, so that the short ones run beside it.
row "loch: cost of operations" 1 vm/tests/bench.sh "$loch"
tool=(-d rxe0 -x 1 -F) # The GID of IPv4, and no complaints about the processor's frequency.
row "READ, RC" 1 vm/pair ib_read_lat "${tool[@]}" -n 100
row "CAS, RC" 1 vm/pair ib_atomic_bw "${tool[@]}" -n 100 -A CMP_AND_SWAP
row "WRITE, UC" 1 vm/pair ib_write_bw "${tool[@]}" -n 100 -c UC
row "SEND, UD" 1 vm/pair ib_send_bw "${tool[@]}" -n 100 -c UD
row "SEND, RC, two hosts" 2 vm/pair ibv_rc_pingpong -d rxe0 -g 1 -n 100
row "READ, RC, two hosts" 2 vm/pair ib_read_lat "${tool[@]}" -n 100
rust 1 verbs:: fabric loch_fabric conformance messages
rust 1 "" fabric verbs
rust 2 "" fabric two_hosts
rust 1 node::network::verbs::rights loch loch
rust 2 two_machines loch two_hosts
rust 2 what_two_machines cli machines
row "loch: put, get, doctor" 2 vm/tests/cluster.sh "$loch"
row "loch: cost, two hosts" 2 vm/tests/bench.sh "$loch"

if [ ${#names[@]} -eq 0 ]; then
  say "no test has a name that contains '$filter'"
  exit 2
fi
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
guests=0 failed=0 started=() seconds=() results=()
declare -A running # The number of the test that a process runs.

# Waits until one of the tests that run has ended.
end_one() {
  local process at status=0
  wait -n -p process "${!running[@]}" || status=$?
  at=${running[$process]}
  unset "running[$process]"
  guests=$((guests - hosts[at])) seconds[at]=$((SECONDS - started[at])) results[at]=passed
  if [ "$status" -ne 0 ]; then
    results[at]="FAILED, status $status"
  elif ! [[ $(counts "$logs/$at") =~ [1-9] ]]; then
    results[at]="FAILED, ran nothing"
  fi
  if [ "${results[at]}" != passed ]; then
    failed=1
    say "${names[at]} ${results[at]}:"
    cat "$logs/$at" >&2
  fi
}

for at in "${!names[@]}"; do
  # A guest keeps a processor busy. Of two tests with one guest each, neither waits for the other.
  while [ "$guests" -gt 0 ] && [ $((guests + hosts[at])) -gt 2 ]; do
    end_one
  done
  say "${names[at]}"
  guests=$((guests + hosts[at])) started[at]=$SECONDS
  # It ends, and ends the guests, when this script does.
  setpriv --pdeathsig TERM vm/run --hosts "${hosts[at]}" --timeout "$row_seconds_max" \
    bash -c "exec ${commands[at]}" >"$logs/$at" 2>&1 &
  running[$!]=$at
done
while [ "$guests" -gt 0 ]; do
  end_one
done
table=()
for at in "${!names[@]}"; do
  table+=("${names[at]}" "${hosts[at]}" "${seconds[at]}" "${results[at]}" "$(counts "$logs/$at")")
done
echo
printf '%-28s  %5s  %7s  %-18s  %s\n' test hosts seconds result counts "${table[@]}"
[ "$failed" -eq 0 ] && verdict=passed || verdict=FAILED
# Where only the end of all this is kept, the reasons are in it.
for at in "${!names[@]}"; do
  if [ "${results[at]}" != passed ]; then
    echo "${names[at]}:"
    grep -E -A 4 'panicked at|^loch: |Error|error:' "$logs/$at" | head -n 60 || true
  fi
done
echo "verbs-test: $verdict, ${#names[@]} rows, $SECONDS s"
exit "$failed"
