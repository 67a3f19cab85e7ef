#!/usr/bin/env bash
# Measures what "fast" means for Loch on shared memory, and shows it beside what is wanted and what
# docs/performance.md says. Takes ten minutes of a machine of two cores that does nothing else. With
# --tcp it does the same for Loch over TCP, in two minutes.
#
#   scripts/targets.sh [--tcp] [--smoke] [check]
#                     exit code 1 if a ratio falls below nine tenths of the documented one
#   scripts/targets.sh [--tcp] [--smoke] set
#                     makes what is measured the documented results
#   scripts/targets.sh [--tcp] document
#                     makes the document's table from its results again
#
# The documented results are docs/results/targets.jsonl and targets-tcp.jsonl: results of `loch bench
# --json`, and numbers of other origin. With --smoke everything is tiny and says nothing about speed: it shows that the
# script works. LOCH and LOCH_PAPERS name binaries to use instead of building them.
set -euo pipefail
cd "$(dirname "$0")/.."

tcp= smoke=
[ "${1:-}" != --tcp ] || { tcp=yes && shift; }
[ "${1:-}" != --smoke ] || { smoke=yes && shift; }
action=${1:-check}
case $action in
  check | set | document) ;;
  *) sed -n '2,${ /^#/!q; s/^# \{0,1\}//; p; }' "$0" >&2 && exit 2 ;;
esac

document=docs/performance.md
folder=docs/results
name=targets${tcp:+-tcp}

# Ten minutes of work would only show that there is nothing to compare with.
if [ "$action" = check ] && ! [ -s "$folder/$name.jsonl" ]; then
  echo "$name: $folder/$name.jsonl has no results to compare with: \`$0 set\` measures them" >&2
  exit 2
fi

# shellcheck source=scripts/results.sh
. scripts/results.sh

show_in_document() { "$LOCH_PAPERS" targets --into "$document" "$folder/$name.jsonl"; }

if [ "$action" = document ]; then
  show_in_document
  exit
fi

# run TARGET OPTION…: one workload, whose results belong to a target.
run() {
  local target=$1 options=(--json --seconds "${smoke:+0.}2" "${@:2}") at
  for at in "${!options[@]}"; do
    [ -z "$smoke" ] || [ "${options[at]}" != --records ] || options[at + 1]=200
  done
  bench "$target" "${options[@]}" | sed "s/^{/{\"target\":\"$target\",/" >>"$results"
}

# The same with reads in place, which a binary of an earlier commit does not have.
run_pinned() {
  if "$LOCH" bench --help | grep -q -e --read-mode; then
    run "$@" --read-mode pin
  fi
}

# value TARGET NUMBER [ENGINE]: a number that does not come from a workload.
value() {
  say "  $1${3:+, $3}: $2"
  printf '{"target":"%s","engine":"%s","value":%s}\n' "$1" "${3:-}" "$2" >>"$results"
}

# The seconds that a node of so many GiB takes until it is ready, for each GiB and core; then the
# processors that it uses at rest. Sets `start` and `rest`.
node() { # ENGINE GIB
  local dir began pid ticks seconds=3
  dir=$(mktemp -d)
  mkfifo "$dir/said"
  began=$EPOCHREALTIME
  "$LOCH" serve --name "$name-$$" --engine "$1" --memory "$2GiB" --socket "$dir/socket" \
    --ephemeral >"$dir/said" 2>"$dir/log" &
  pid=$!
  if ! grep -m 1 -q 'is ready at' "$dir/said"; then
    cat "$dir/log" >&2
    exit 3
  fi
  start=$(awk "BEGIN { printf \"%.3f\", ($EPOCHREALTIME - $began) * $(nproc) / $2 }")
  sleep 1
  ticks=$(ticks_of "$pid")
  sleep "$seconds"
  rest=$(awk "BEGIN { printf \"%.3f\", ($(ticks_of "$pid") - $ticks) / $(getconf CLK_TCK) / $seconds }")
  kill "$pid"
  wait "$pid" || true
  rm -r "$dir"
}

# The clock ticks for which a process had a core.
ticks_of() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }

[ -n "$smoke" ] || warn_if_busy

# Ends the script: what was measured is compared with the documented results, or becomes them.
finish() {
  if [ "$action" = set ]; then
    publish
    show_in_document
  else
    "$LOCH_PAPERS" targets "$results" --documented "$folder/$name.jsonl"
  fi
  exit
}

if [ -n "$tcp" ]; then
  group "Targets over TCP" "scripts/targets.sh --tcp"
  far=(--fabric tcp --far on --peer memcached --dist uniform)
  small=(--records 100000 --reads 0.95)
  asked=nessie-server,herd,kv-direct
  run tcp-deep "${far[@]}" "${small[@]}" --engine "$asked" --lanes 32
  run tcp-deep-nessie "${far[@]}" "${small[@]}" --lanes 32
  run tcp-one "${far[@]}" "${small[@]}" --engine "$asked" --lanes 1
  run tcp-one-nessie "${far[@]}" "${small[@]}" --lanes 1
  run tcp-long "${far[@]}" --records 1024 --value-size 1MiB --reads 1 --lanes 32
  finish
fi

group "Targets on shared memory" "scripts/targets.sh"

for dist in uniform zipf:0.99; do
  for millions in 1 10 50; do
    run get-batches --records "${millions}000000" --dist "$dist" --reads 1 --lanes 32
  done
  for millions in 1 50; do
    run get-lanes --records "${millions}000000" --dist "$dist" --reads 1 --lanes 16 --batch-api off
  done
  run get-one --records 1000000 --dist "$dist" --reads 1 --lanes 1
  run put-batches --records 4000000 --dist "$dist" --reads 0 --lanes 32
done

run maps --records 4000000 --dist uniform --reads 1 --lanes 32 --peer papaya,hashbrown
run sockets-one --records 1000000 --lanes 1 --peer memcached,redis
run sockets --records 1000000 --lanes 32 --peer memcached,redis
while read -r size records; do
  run_pinned sockets-pinned --records "$records" --value-size "$size" --lanes 32 \
    --peer memcached,redis
done <<'SIZES'
16KiB 65536
1MiB 1024
SIZES

for reads in 0.5 1; do
  run lmdb-64 --records 1000000 --lanes 32 --reads "$reads" --peer lmdb
  while read -r size records; do
    run lmdb-copied --records "$records" --value-size "$size" --lanes 32 --reads "$reads" --peer lmdb
    run_pinned lmdb-pinned --records "$records" --value-size "$size" --lanes 32 --reads "$reads" \
      --peer lmdb
  done <<'SIZES'
16KiB 65536
1MiB 1024
SIZES
done

# As `loch demo`: more processes than cores.
served=nessie-server,nessie-hybrid,herd,pilaf,kv-direct
run short-cores --engine "$served" --peer memcached --nodes 3 --clients 2 --lanes 32 --records 300000

value memory "$("$LOCH_PAPERS" memory)"
node nessie "$([ -n "$smoke" ] && echo 1 || echo 4)"
value start "$start"
value rest "$rest"
for engine in ${served//,/ }; do
  node "$engine" 1
  value rest-served "$rest" "$engine"
done

finish
