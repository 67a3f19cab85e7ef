#!/usr/bin/env bash
# Runs what needs real RDMA verbs, in small virtual machines with Soft-RoCE: vm/README.md.
#
#   scripts/verbs-test.sh [TEXT]     all tests, or those whose name contains TEXT
#
# Ends with a table of all tests, and fails if one of them did. Where the emulator or the guests'
# kernel cannot be had, everything is skipped, with a line that begins with SKIPPED.
set -euo pipefail
cd "$(dirname "$0")/.."

filter=${1:-}
# Four times what the longest takes on a machine with nothing else to do.
row_seconds_max=240
names=() hosts=() commands=()

say() { echo "verbs-test: $*" >&2; }

# A test: what runs in each of so many guests, and must succeed in all of them.
row() { # NAME HOSTS COMMAND [ARG…]
  [[ $1 == *"$filter"* ]] || return 0
  names+=("$1") hosts+=("$2") commands+=("$(printf '%q ' "${@:3}")")
}

# A test for each binary that `cargo test` makes of these arguments. They are built here, and run as
# cargo would run them, but one test at a time, and only those whose name contains FILTER.
rust() { # HOSTS FILTER CARGO_ARG…
  local made name folder binary
  # Of cargo's lines of JSON those of test binaries: their name, package's folder, and path.
  made=$(cargo test --quiet --locked --no-run --message-format=json-render-diagnostics \
    --features verbs "${@:3}" |
    { grep '"test":true},"features"' || true; } |
    sed -E 's|.*"manifest_path":"([^"]*)/Cargo.toml"(.*)|\2 \1|
      s|.*"name":"([^"]*)".*"executable":"([^"]*)".* (.*)|\1 \3 \2|')
  while read -r name folder binary; do
    # Without a device the tests would have nothing to say: here that is a failure.
    row "${folder##*/}: $name" "$1" env -C "$folder" CARGO_MANIFEST_DIR="$folder" LOCH_VERBS_TEST=1 \
      "$binary" --test-threads 1 "$2"
  done <<<"${made:?no test binary is made of: ${*:3}}"
}

# What a test says of itself: tests passed and failed, or iterations. Both ends say the same.
counts() { # LOG
  sed -nE 's/^host[0-9]: //
    s/^test result: [^.]*\. ([0-9]+ passed; [0-9]+ failed).*/\1/p
    s/^([0-9]+ checks)$/\1/p
    s/^([0-9]+) iters in .*/\1 iterations/p
    s/^ *[0-9]+ +([0-9]+) +[0-9.]+ +[0-9.].*/\1 iterations/p' "$1" | sort -u | paste -sd , -
}

scripts/deps.sh build
if ! scripts/deps.sh verbs || ! vm/prepare.sh >/dev/null; then
  echo "SKIPPED: the tests on real verbs: QEMU or the guests' kernel cannot be had here; see above"
  exit 0
fi

# What the feature adds and no device is needed for: the control plane, hostile set-ups.
cargo clippy --quiet --locked -p loch-fabric -p loch -p loch-cli --all-targets --features verbs -- \
  -D warnings
cargo test --quiet --locked -p loch-fabric -p loch --lib --features verbs
cargo build --quiet --locked -p loch-cli --features verbs
loch=${CARGO_TARGET_DIR:-target}/debug/loch

# shellcheck disable=SC2016 # The guest's shell expands it.
row "device" 1 bash -c 'for want in PORT_ACTIVE ATOMIC_HCA "::ffff:10.9.0.1, RoCE v2"; do
  ibv_devinfo -v -d rxe0 | grep -F "$want" || { echo "the device lacks: $want"; exit 1; }
done; echo "3 checks"'
tool=(-d rxe0 -x 1 -F) # The GID of IPv4, and no complaints about the processor's frequency.
row "READ, RC" 1 vm/pair ib_read_lat "${tool[@]}" -n 100
row "CAS, RC" 1 vm/pair ib_atomic_bw "${tool[@]}" -n 100 -A CMP_AND_SWAP
row "WRITE, UC" 1 vm/pair ib_write_bw "${tool[@]}" -n 100 -c UC
row "SEND, UD" 1 vm/pair ib_send_bw "${tool[@]}" -n 100 -c UD
row "SEND, RC, two hosts" 2 vm/pair ibv_rc_pingpong -d rxe0 -g 1 -n 100
row "READ, RC, two hosts" 2 vm/pair ib_read_lat "${tool[@]}" -n 100
rust 1 verbs:: -p loch-fabric --lib --test conformance --test messages
rust 1 "" -p loch-fabric --test verbs
rust 2 "" -p loch-fabric --test two_hosts
rust 1 node::rights -p loch --lib
rust 2 two_machines -p loch --test two_hosts
rust 2 what_two_machines -p loch-cli --test machines
row "loch: put, get, doctor" 2 vm/tests/cluster.sh "$loch"
row "loch: cost of operations" 1 vm/tests/bench.sh "$loch"
row "loch: cost, two hosts" 2 vm/tests/bench.sh "$loch"

if [ ${#names[@]} -eq 0 ]; then
  say "no test has a name that contains '$filter'"
  exit 2
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
table=() failed=0
for at in "${!names[@]}"; do
  say "${names[at]}"
  result=passed started=$SECONDS
  # It ends, and ends the guests, when this script does.
  setpriv --pdeathsig TERM vm/run --hosts "${hosts[at]}" --timeout "$row_seconds_max" \
    bash -c "exec ${commands[at]}" >"$log" 2>&1 || {
    result="FAILED, status $?"
    failed=1
    cat "$log" >&2
  }
  table+=("${names[at]}" "${hosts[at]}" $((SECONDS - started)) "$result" "$(counts "$log")")
done
echo
printf '%-28s  %5s  %7s  %-18s  %s\n' test hosts seconds result counts "${table[@]}"
exit "$failed"
