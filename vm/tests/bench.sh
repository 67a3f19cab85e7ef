#!/usr/bin/env bash
# What operations cost over real verbs, counted by `loch bench`: verbs and round trips for each GET
# and PUT, and the processors of the nodes, which clients do without.
#
#   cargo build -p loch-cli --features verbs
#   vm/run --hosts 2 vm/tests/bench.sh target/debug/loch    # a node on each host, a client on one
#   vm/run vm/tests/bench.sh target/debug/loch              # nodes that the bench starts itself
#
# Ends with a line "N checks".
set -euo pipefail
loch=${1:-target/debug/loch}
# shellcheck source=vm/tests/node.sh
. "$(dirname "$0")/node.sh"
# A sign of life every two seconds, of each node, takes a hundredth of a second where a processor is
# emulated; a client's operations would take the node's processor all the time.
cpu_share_max=0.03 cpu_seconds_min=0.05
checks=0

field() { # NAME OBJECT
  sed -nE "s/.*\"$1\":([^,}]*).*/\1/p" <<<"$2"
}

# That a number is what it should be, but for what happens now and then: a key whose candidates are
# on a full bucket, say.
near() { # WHAT NUMBER EXPECTED
  awk -v n="$2" -v e="$3" 'BEGIN { exit !(n ~ /^[0-9.]+$/ && n >= e - 0.001 && n <= e * 1.05) }' ||
    fail "$1: $2, not $3"
  echo "$1: $2"
  checks=$((checks + 1))
}

at_most() { # WHAT NUMBER MOST
  awk -v n="$2" -v m="$3" 'BEGIN { exit !(n ~ /^[0-9.]+$/ && n <= m) }' ||
    fail "$1: $2, more than $3"
  echo "$1: $2"
  checks=$((checks + 1))
}

# What nodes may use in a time.
cpu_most() { # SECONDS
  awk -v s="$1" -v share="$cpu_share_max" -v min="$cpu_seconds_min" \
    'BEGIN { most = s * share; print (most > min ? most : min) }'
}

bench() { # OPTION…
  # One operation at a time, and few records in a large index: no key meets another's entry.
  "$loch" bench --json --verify --fabric verbs --clients 1 --lanes 1 --dist uniform \
    --records 200 "$@"
}

# No error, and next to no time of the node's, in a run of the bench.
sound() { # WHAT OBJECT
  at_most "$1, errors" "$(field errors "$2")" 0
  at_most "$1, CPU seconds of the node here" "$(field server_cpu_s "$2")" \
    "$(cpu_most "$(field seconds "$2")")"
}

# A run of nothing but GETs and one of PUTs, compared with docs/protocol.md (round trips).
costs() { # WHAT GET_VERBS GET_TRIPS PUT_VERBS PUT_TRIPS OPTION…
  local object
  object=$(bench --reads 1 --ops 400 "${@:6}")
  near "$1 GET, verbs" "$(field verbs_per_get "$object")" "$2"
  near "$1 GET, round trips" "$(field round_trips_per_get "$object")" "$3"
  [[ $object == *Soft-RoCE* ]] || fail "$1: nobody says that times mean nothing: $object"
  [ "$(field gets "$object")" = "$(field get_hits "$object")" ] || fail "$1: GETs miss: $object"
  sound "$1 GET" "$object"
  object=$(bench --reads 0 --ops 400 "${@:6}")
  near "$1 PUT, verbs" "$(field verbs_per_put "$object")" "$4"
  near "$1 PUT, round trips" "$(field round_trips_per_put "$object")" "$5"
  sound "$1 PUT" "$object"
}

if [ "$HOSTS" -eq 1 ]; then
  own=(--nodes 2 --index-fill 5)
  costs "own nodes, cold" 4 2 6 3 --cache off "${own[@]}"
  costs "own nodes, warm" 1 1 2 1 --cache on "${own[@]}"
  ls /dev/shm/loch-bench-* 2>/dev/null && fail "the bench left files"
  echo "$checks checks"
  exit
fi

start_node

# How often a thread of the node has begun to wait for something. Threads may end meanwhile, but
# not all of them.
waits() {
  { cat "/proc/$node/task/"*/status 2>/dev/null || true; } |
    awk '/^voluntary/ { n += $2 } END { if (!NR) exit 1; print n }'
}

# A phase that host 1 fills with a bench: how often the node here has waited in it.
phase() { # NAME COMMAND [ARG…]
  local before
  meet "$1-begins"
  before=$(waits) began=$SECONDS
  [ "$HOST" -ne 1 ] || "${@:2}"
  meet "$1-ends"
  waited=$(($(waits) - before))
  took=$((SECONDS - began))
}

attached=(--attach "$socket")
phase cold costs "two hosts, cold" 4 2 6 3 --table cold "${attached[@]}"
phase warm costs "two hosts, warm" 1 1 2 1 --table warm "${attached[@]}"
# What a client does costs the node of another host nothing: it wakes up as often while one works as
# while none does, for signs of life, and to let a client in and to scrub after it.
mixed=(bench --reads 0.5 --table cold --load no "${attached[@]}" --ops)
quietly() { "$@" >/dev/null; }
phase few quietly "${mixed[@]}" 50
few=$waited
phase many quietly "${mixed[@]}" 3000
many=$waited
phase idle sleep "$took"
if [ "$HOST" -ne 1 ]; then
  echo "this node woke up $few times for 50 operations; $many for 3000, in $took s; $waited for none"
  at_most "wake-ups of the node for 3000 operations of another host" "$many" \
    $((few + 2 * waited + 300))
fi
stop_node
echo "$checks checks"
