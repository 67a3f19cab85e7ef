# shellcheck shell=bash
# shellcheck disable=SC2154
# Sourced by tests that run in several guests: a real node on each, joined over verbs, and places
# where the guests meet. Before it is sourced, `loch` is the program.
patience_seconds=120
socket=/tmp/loch.sock

fail() {
  echo "${0##*/}: $*" >&2
  exit 1
}

wait_for() { # WHAT COMMAND [ARG…]
  local until=$((SECONDS + patience_seconds))
  until "${@:2}"; do
    [ "$SECONDS" -lt "$until" ] || fail "waited in vain for $1"
    sleep 0.05
  done
}

# Waits until all guests are here.
meet() { # WHERE
  touch "/shared/$1.$HOST"
  # shellcheck disable=SC2016 # The inner shell expands it.
  wait_for "$1" bash -c '[ "$(ls /shared | grep -c "^$0")" -eq "$HOSTS" ]' "$1"
}

# A table for each of these engines, named after it, has a node that is started with them.
served=(nessie-server nessie-hybrid herd pilaf kv-direct)

# What the node of this guest is told: a table `cold` that remembers nothing, and one that remembers
# what it has seen; and one for each of these engines. A test plans it on every machine
# (tests/plans.rs), since guests run a while after a change that does not fit.
configuration() { # [ENGINE…]
  cat <<END_OF_FILE
name = "host$HOST"
socket = "$socket"
memory = "$((64 + 16 * $#))MiB"
fabric = "verbs"
listen = "10.9.0.$HOST:7400"
cluster = [$(seq -s , "$HOSTS" | sed -E 's/[0-9]+/"10.9.0.&:7400"/g')]
secret = "/tmp/secret"
sessions = 64
ephemeral = true
[[table]]
name = "cold"
cache = false
[[table]]
name = "warm"
cache = true
$(for engine; do printf '[[table]]\nname = "%s"\nengine = "%s"\n' "$engine" "$engine"; done)
END_OF_FILE
}

# A node of a cluster of all guests, as $node.
start_node() { # [ENGINE…]
  if [ "$HOST" -eq 1 ]; then
    (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >/shared/new)
    mv /shared/new /shared/secret
  fi
  wait_for "the secret" test -s /shared/secret
  install -m 600 /shared/secret /tmp/secret
  configuration "$@" >/tmp/node.toml
  "$loch" serve --config /tmp/node.toml >/tmp/node.log 2>&1 &
  node=$!
  wait_for "the node" is_ready
}

is_ready() {
  ! grep -q ' is ready at ' /tmp/node.log || return 0
  kill -0 "$node" || fail "$(cat /tmp/node.log)"
  return 1
}

stop_node() {
  kill -TERM "$node"
  wait "$node" || fail "the node ended with $?: $(cat /tmp/node.log)"
}
