#!/usr/bin/env bash
# Measures the numbers of docs/performance.md. Takes about a quarter of an hour on a machine that
# does nothing else.
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

name=performance
# shellcheck source=scripts/results.sh
. scripts/results.sh

# Runs the bench. In a smoke run the time is short and the records are few.
variant=
run() {
  local options=(--json --seconds "${smoke:+0.}2" "$@") at
  for at in "${!options[@]}"; do
    [ -z "$smoke" ] || [ "${options[at]}" != --records ] || options[at + 1]=200
  done
  bench "$variant" "${options[@]}" | sed "s/^{/{${variant:+\"variant\":\"$variant\",}/" >>"$results"
}

[ -n "$smoke" ] || warn_if_busy

group "Ten million records" \
  "loch bench --records 10000000 --lanes 16 --peer $peers --dist D --reads S --seconds 2"
for dist in uniform zipf:0.99; do
  run --records 10000000 --lanes 16 --peer "$peers" --dist "$dist" --reads 0.95
  run --records 10000000 --lanes 16 --dist "$dist" --reads 1
  run --records 10000000 --lanes 16 --dist "$dist" --reads 0
done

# Each store holds half a GiB to one GiB of values.
group "Sizes of values, distributions of keys, and mixes" \
  "loch bench --value-size V --records R --lanes 32 --peer $peers --dist D --reads S --seconds 2"
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

group "One operation at a time" "loch bench --lanes 1 --peer $peers --seconds 2"
run --records 1000000 --lanes 1 --peer "$peers"

group "More records, of the same size" \
  "loch bench --records R --lanes 16 --dist uniform --reads 1 --seconds 2"
for millions in 1 5 20 50; do
  variant="$millions M records"
  run --records "${millions}000000" --lanes 16 --dist uniform --reads 1
done

group "Beside others who want the cores" \
  "loch bench --lanes 32 --peer memcached,redis --background-hogs H --seconds 2"
for hogs in 0 2 4; do
  variant="$hogs hogs"
  run --records 1000000 --lanes 32 --peer memcached,redis --background-hogs "$hogs"
done

group "What each switch does (nessie §4.3.2)" \
  "loch bench --nodes 2 --clients 2 --value-size 1KiB SWITCH"
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
group "Long values in one READ" "loch bench --value-size 64KiB --multi-read SWITCH"
for switch in on off; do
  variant="multi-read $switch"
  run --value-size 64KiB --records 16384 --lanes 16 --multi-read "$switch"
done

make_tables
publish
