#!/usr/bin/env bash
# Measures every engine over TCP at a distance: the table of docs/choosing-an-engine.md. The node and
# the client are in two network namespaces, joined by a wire that delays (tests/wire). Takes about twelve
# minutes on a machine of two cores that does nothing else, and needs root and `ip` (iproute2).
#
#   scripts/distance.sh [--smoke] [FOLDER]     default folder: docs/results
#
# Writes FOLDER/distance.jsonl, one object a line: headers that say where and how, and below each the
# results of `loch bench --json`; and FOLDER/distance.md, the same as tables. With --smoke everything
# is tiny and says nothing about speed: it shows that the script works.
set -euo pipefail
cd "$(dirname "$0")/.."

smoke=
[ "${1:-}" != --smoke ] || { smoke=yes && shift; }
if [[ $# -gt 1 || ${1:-} == -* ]]; then
  sed -n '2,${ /^#/!q; s/^# \{0,1\}//; p; }' "$0" >&2
  exit 2
fi
folder=${1:-docs/results}

name=distance
# shellcheck source=scripts/results.sh
. scripts/results.sh
wire=${CARGO_TARGET_DIR:-target}/release/loch-wire
cargo build --release --locked --quiet -p loch-wire
dir=$(mktemp -d)
trap 'rm -rf "$results" "$dir"' EXIT
(umask 077 && head -c 32 /dev/urandom | base64 >"$dir/secret")

# Runs a workload of an engine: its node on host 1, its client on host 2.
# shellcheck disable=SC2016 # The inner shell expands it.
node_and_client='
  dir=$1 loch=$2 engine=$3 && shift 3
  export LOCH_SOCKET=$dir/socket
  {
    echo "memory = \"1GiB\""
    echo "sessions = 8"
    echo "[[table]]"
    echo "name = \"default\""
    echo "engine = \"$engine\""
    # All that a client has under way are on their way at once.
    [ "$engine" = nessie ] || echo "window = 32"
  } >"$dir/node.toml"
  "$loch" serve --config "$dir/node.toml" --region "$dir/region" --listen 10.9.0.1:7400 \
    --secret "$dir/secret" >"$dir/log" 2>&1 &
  trap "kill $! 2>/dev/null; wait; rm -f $dir/region" EXIT
  until grep -q " is ready at " "$dir/log"; do
    kill -0 $! || { cat "$dir/log" >&2; exit 1; }
    sleep 0.05
  done
  ip netns exec loch-2 "$loch" bench --attach "$LOCH_SOCKET" --fabric tcp --far on \
    --engine "$engine" --json "$@"
'
run() { # LABEL DELAY ENGINE OPTION…
  say "  $1: $3, ${*:4}"
  "$wire" --delay-us "$2" bash -c "$node_and_client" _ "$dir" "$(realpath "$LOCH")" "${@:3}" |
    sed "s/^{/{\"variant\":\"$1\",/" >>"$results"
}

declare -A labels=([64]="64 B" [16KiB]="16 KiB") records=([64]=100000 [16KiB]=10000)
seconds=1
[ -n "$smoke" ] || warn_if_busy
[ -z "$smoke" ] || { records=([64]=200 [16KiB]=200) && seconds=0.05; }
for added in 0 50 500; do
  group "Round trips of $added us more than the machine takes" \
    "loch-wire --delay-us $((added / 2)) … loch bench --attach S --fabric tcp --far on --engine E --value-size V --records R --reads S --lanes L --dist uniform --seconds 1" \
    speed latency
  for engine in nessie nessie-hybrid nessie-server pilaf herd kv-direct; do
    for lanes in 1 32; do
      for reads in 0.95 0.5; do
        for size in 64 16KiB; do
          # herd has no room for long values.
          [ "$engine $size" != "herd 16KiB" ] || continue
          run "${labels[$size]}, $lanes under way, $reads GETs" $((added / 2)) "$engine" \
            --value-size "$size" --records "${records[$size]}" --reads "$reads" \
            --lanes "$lanes" --dist uniform --seconds "$seconds"
        done
      done
    done
  done
done

make_tables
publish
