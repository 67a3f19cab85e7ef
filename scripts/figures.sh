#!/usr/bin/env bash
# Measures what docs/performance.md shows. Takes about a quarter of an hour of a machine that does
# nothing else.
#
#   scripts/figures.sh [--smoke] [FOLDER]     default folder: docs/results
#
# Writes FOLDER/performance.jsonl, one object a line: headers that say where and how, and below each
# the results of `loch bench --json`; and FOLDER/performance.md, the same as tables. With --smoke
# everything is tiny and says nothing about speed: it shows that the script works.
set -euo pipefail
cd "$(dirname "$0")/.."

smoke=
[ "${1:-}" != --smoke ] || { smoke=yes && shift; }
if [[ $# -gt 1 || ${1:-} == -* ]]; then
  sed -n 's/^# \{0,1\}//; 2,9p' "$0" >&2
  exit 2
fi
folder=${1:-docs/results}
peers=memcached,redis,lmdb

say() { echo "figures: $*" >&2; }

cargo build --release --locked --quiet -p loch-cli
loch=${CARGO_TARGET_DIR:-target}/release/loch
mkdir -p "$folder"
results=$(mktemp "$folder/performance.XXXXXX")
trap 'rm -f "$results"' EXIT

# A text as the inside of a JSON string.
json() { tr -d '"\134' <<<"$*" | tr '\n\t' '  ' | sed 's/ *$//'; }

commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
model=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
memory=$(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)
versions=$(
  memcached --version 2>/dev/null
  redis-server --version 2>/dev/null | sed -E 's/.*v=([^ ]*).*/redis \1/'
)
host=$(json "${model:-unknown processor}, $(nproc) cores, $memory, Linux $(uname -r), $versions")

# Begins a group of results: its title, and how each of them is made.
group() {
  say "$1"
  printf '{"title":"%s","commit":"%s","date":"%s","host":"%s","command":"%s"}\n' \
    "$(json "$1")" "$(json "$commit")" "$(date -u +%F)" "$host" "$(json "loch bench $2")" >>"$results"
}

# Runs the bench. In a smoke run the time is short and the records are few.
variant=
run() {
  local options=(--json --seconds "${smoke:+0.}2" "$@") at
  for at in "${!options[@]}"; do
    [ -z "$smoke" ] || [ "${options[at]}" != --records ] || options[at + 1]=200
  done
  say "  ${variant:+$variant: }loch bench ${options[*]}"
  "$loch" bench "${options[@]}" | sed "s/^{/{${variant:+\"variant\":\"$variant\",}/" >>"$results"
}

[ -n "$smoke" ] || awk '$1 > 0.5 { print "figures: this machine is busy (load " $1 "): expect noise" }' \
  /proc/loadavg >&2

group "Ten million records" \
  "--records 10000000 --lanes 16 --peer $peers --dist D --reads S --seconds 2"
for dist in uniform zipf:0.99; do
  run --records 10000000 --lanes 16 --peer "$peers" --dist "$dist" --reads 0.95
  run --records 10000000 --lanes 16 --dist "$dist" --reads 1
  run --records 10000000 --lanes 16 --dist "$dist" --reads 0
done

# Each store holds half a GiB to one GiB of values.
group "Sizes of values, distributions of keys, and mixes" \
  "--value-size V --records R --lanes 32 --peer $peers --dist D --reads S --seconds 2"
while read -r size records; do
  for dist in uniform zipf:0.99; do
    for reads in 0.5 0.95 1; do
      run --value-size "$size" --records "$records" --lanes 32 --peer "$peers" \
        --dist "$dist" --reads "$reads"
    done
  done
done <<'SIZES'
64 1000000
1KiB 500000
16KiB 65536
128KiB 8192
1MiB 1024
SIZES

group "One operation at a time" "--lanes 1 --peer $peers --seconds 2"
run --records 1000000 --lanes 1 --peer "$peers"

group "More records, of the same size" "--records R --lanes 16 --dist uniform --reads 1 --seconds 2"
for millions in 1 5 20 50; do
  variant="$millions M records"
  run --records "${millions}000000" --lanes 16 --dist uniform --reads 1
done

group "Beside others who want the cores" \
  "--lanes 32 --peer memcached,redis --background-hogs H --seconds 2"
for hogs in 0 2 4; do
  variant="$hogs hogs"
  run --records 1000000 --lanes 32 --peer memcached,redis --background-hogs "$hogs"
done

group "What each switch does (nessie §4.3.2)" "--nodes 2 --clients 2 --value-size 1KiB SWITCH"
switches() {
  variant=$1
  run --nodes 2 --clients 2 --records 200000 --value-size 1KiB --lanes 16 "${@:2}"
}
switches "as it comes"
switches "no filter bits" --filter-bits off
switches "cache" --cache on
switches "batched reads" --batched-reads on
switches "checksums" --checksums on
switches "buckets of one slot" --bucket-slots 1
switches "buckets of one slot, no filter bits" --bucket-slots 1 --filter-bits off
switches "buckets of one slot, batched reads, cache" --bucket-slots 1 --batched-reads on --cache on
variant=
group "Long values in one READ" "--value-size 64KiB --multi-read SWITCH"
for switch in on off; do
  variant="multi-read $switch"
  run --value-size 64KiB --records 16384 --lanes 16 --multi-read "$switch"
done

"$loch" bench-table "$results" >"$folder/performance.md"
chmod 644 "$results"
mv "$results" "$folder/performance.jsonl"
say "wrote $folder/performance.jsonl and $folder/performance.md"
