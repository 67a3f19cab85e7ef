#!/usr/bin/env bash
# A cluster of machines as its operator and users see it: the program alone, on two hosts.
#
#   cargo build -p loch-cli --features verbs
#   vm/run --hosts 2 vm/tests/cluster.sh target/debug/loch
#
# Ends with a line "N checks".
set -euo pipefail
loch=${1:-target/debug/loch}
# shellcheck source=vm/tests/node.sh
. "$(dirname "$0")/node.sh"
checks=0

# That a command prints this.
prints() { # EXPECTED COMMAND [ARG…]
  local found status=0
  found=$("${@:2}" 2>&1) || status=$?
  [[ $status -eq 0 && $found == *"$1"* ]] || fail "${*:2}: status $status, '$found', not '$1'"
  checks=$((checks + 1))
}

# That a command is refused, and says this.
refused() { # STATUS WORDS COMMAND [ARG…]
  local found status=0
  found=$("${@:3}" 2>&1) || status=$?
  [[ $status -eq $1 && $found == *"$2"* ]] || fail "${*:3}: status $status, '$found', not '$2'"
  checks=$((checks + 1))
}

export LOCH_SOCKET=$socket
table=(--table warm)
prints "SEND" "$loch" doctor --fabric verbs
refused 1 "none0" "$loch" doctor --fabric verbs --device none0 --no-self-test
for own in "10.9.0.$HOST:7401" 127.0.0.1:7401; do
  refused 2 "urandom" "$loch" serve --socket /tmp/open.sock --fabric verbs --listen "$own" \
    --cluster "$own,127.0.0.1:7402"
done
served=(nessie-server nessie-hybrid herd pilaf kv-direct)
start_node "${served[@]}"
meet up

# What one host puts the other gets, and what it deletes is gone.
theirs=$((3 - HOST))
prints "" "$loch" put "${table[@]}" "colour$HOST" "green of host $HOST"
head -c 300000 /dev/urandom >"/shared/large$HOST"
prints "" "$loch" put "${table[@]}" "large$HOST" - <"/shared/large$HOST"
meet put
prints "green of host $theirs" "$loch" get "${table[@]}" "colour$theirs"
"$loch" get "${table[@]}" "large$theirs" | cmp - "/shared/large$theirs" ||
  fail "host $theirs put something else"
prints "" "$loch" delete "${table[@]}" "colour$theirs"
meet deleted
refused 1 "colour$HOST" "$loch" get "${table[@]}" "colour$HOST"
for engine in "${served[@]}"; do
  prints "" "$loch" put --table "$engine" "sound$HOST" "hum of host $HOST"
  prints "" "$loch" put --table "$engine" "long$HOST" - <<<"$(head -c 500 </dev/zero | tr '\0' "$HOST")"
done
meet served-put
for engine in "${served[@]}"; do
  prints "hum of host $theirs" "$loch" get --table "$engine" "sound$theirs"
  prints "$theirs$theirs$theirs" "$loch" get --table "$engine" "long$theirs"
  prints "" "$loch" delete --table "$engine" "sound$theirs"
done
meet served-deleted
for engine in "${served[@]}"; do
  refused 1 "sound$HOST" "$loch" get --table "$engine" "sound$HOST"
done
prints "" "$loch" check
prints "host$theirs" "$loch" stats
meet checked

# A node that is away is named, and a cluster without it goes on as far as it can.
if [ "$HOST" -eq 2 ]; then
  stop_node
fi
meet away
if [ "$HOST" -eq 1 ]; then
  refused 3 "10.9.0.2:7400" timeout 60 "$loch" get "${table[@]}" colour1
  stop_node
fi
meet end
echo "$checks checks"
