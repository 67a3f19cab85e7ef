#!/usr/bin/env bash
# Measures the headlines of the papers on this host: the numbers in docs/performance.md of engines
# whose servers take part, beside the engine whose servers do not. Takes about ten minutes on a
# machine of two cores that does nothing else.
#
#   scripts/headlines.sh [--smoke] [--only LETTERS] [FOLDER]     default folder: docs/results
#
#   a  processes that want the cores too (nessie §6.1, Figure 4)
#   b  long values, half of the operations PUTs (nessie §6.2, Figure 5), and what each switch brings
#      under skew (Figure 13)
#   c  processors that servers take, from rest to full load (nessie §6.3)
#   d  Pilaf beside memcached and Redis, its races and its probes (pilaf §5)
#   e  what HERD's prefetching hides, what a worker does, and skew (herd §4.1.1, §5.7)
#
# Writes FOLDER/headlines.jsonl, one object a line: headers that say where and how, and below each the
# results; and FOLDER/headlines.md, the same as tables. With --smoke everything is tiny and says
# nothing about speed: it shows that the script works. LOCH and LOCH_PAPERS name binaries to use
# instead of building them.
set -euo pipefail
cd "$(dirname "$0")/.."

smoke=
only=abcde
while [[ ${1:-} == --* ]]; do
  case $1 in
    --smoke) smoke=yes ;;
    --only) only=${2:?--only needs letters, such as ac} && shift ;;
    *) sed -n '2,${ /^#/!q; s/^# \{0,1\}//; p; }' "$0" >&2 && exit 2 ;;
  esac
  shift
done
folder=${1:-docs/results}
name=headlines
# shellcheck source=scripts/results.sh
. scripts/results.sh

# Runs the bench for one row of a table. In a smoke run the time is short and the records are few.
# `as` is what a system is called, where it is measured in several ways.
as=
run() {
  local variant=$1 options=(--json "${@:2}") at
  for at in "${!options[@]}"; do
    [ -z "$smoke" ] || [ "${options[at]}" != --records ] || options[at + 1]=400
    [ -z "$smoke" ] || [ "${options[at]}" != --seconds ] ||
      options[at + 1]=$(awk "BEGIN { print ${options[at + 1]} / 100 }")
  done
  bench "$variant${as:+, $as}" "${options[@]}" |
    sed "s/^{/{\"variant\":\"$variant\",${as:+\"as\":\"$as\",}/" >>"$results"
}

# Runs micro-benchmarks whose names match a pattern; what they print as objects, and what they
# measure, are results.
micro() {
  local bench=$1 pattern=$2 left
  left=$(mktemp -d)
  say "  cargo bench -p loch-engines --bench $bench -- $pattern"
  local times=(--warm-up-time 0.2 --measurement-time 0.8)
  [ -z "$smoke" ] || times=(--warm-up-time 0.01 --measurement-time 0.02)
  # Huge pages, so that what is seen is memory and not the page table's.
  CRITERION_HOME=$left GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
    cargo bench --locked --quiet -p loch-engines --bench "$bench" -- \
    "${times[@]}" --sample-size 10 --noplot --quiet "$pattern" >"$left/out"
  sed -n '/^{"group"/p' "$left/out" >>"$results"
  if [ -n "$(find "$left" -name estimates.json -print -quit)" ]; then
    "$LOCH_PAPERS" points "$left" >>"$results"
  fi
  rm -rf "$left"
}

[ -n "$smoke" ] || warn_if_busy

wanted() { [[ $only == *$1* ]]; }

trio=nessie,nessie-hybrid,nessie-server

if wanted a; then
  hogs=(--engine "$trio" --value-size 16KiB --records 16384 --reads 0.9 --dist uniform --dedicated)
  group "Beside others who want the cores (nessie §6.1, Figure 4)" \
    "loch bench ${hogs[*]} --background-hogs H --seconds 3" speed-of-first-row latency server-cores
  for count in 0 1 2 4; do
    run "$count hogs" "${hogs[@]}" --background-hogs "$count" --seconds 3
  done
fi

if wanted b; then
  long=(--engine "$trio" --reads 0.5 --dist uniform)
  group "Long values, half of the operations PUTs (nessie §6.2, Figure 5)" \
    "loch bench ${long[*]} --value-size V --records R --seconds 2" speed-of-first-column
  while read -r size records; do
    run "$size" "${long[@]}" --value-size "$size" --records "$records" --seconds 2
  done <<'SIZES'
2KiB 131072
4KiB 65536
8KiB 32768
16KiB 16384
32KiB 8192
64KiB 4096
128KiB 2048
SIZES

  # Each line has one switch more than the one before. They are the published protocol's: the
  # simulator with the paper's hardware, nodes and clients has them in simulated-servers.sh; this is
  # a host where a round trip costs next to nothing. Caches hold 0.5 % of the keys, whole.
  skewed=(--dist zipf:0.99 --value-size 16KiB --records 16384 --bucket-slots 1 --index-fill 40)
  skewed+=(--engine nessie-published --clients 2 --cache-lines 82 --cache-entry-max 32KiB)
  group "What each switch brings under skew, on this host (nessie §6.2, Figure 13)" \
    "loch bench ${skewed[*]} --reads S --seconds 2 SWITCH" speed-of-first-row retries
  for reads in 0.5 0.99; do
    as="$(awk "BEGIN { print 100 * $reads }") % GETs"
    off=(--filter-bits off --cache off --previous-versions off --multi-read off)
    for step in basic "+ filter" "+ caching" "+ previous versions" "+ multiple READs"; do
      # Over shared memory a cache is off unless it is asked for.
      [[ " ${off[*]} " == *" --cache "* ]] || off+=(--cache on)
      run "$step" "${skewed[@]}" --reads "$reads" --seconds 2 "${off[@]}"
      off=("${off[@]:2}")
    done
  done
  as=
fi

if wanted c; then
  loaded=(--value-size 16KiB --records 16384 --reads 0.9 --dist uniform --clients 1)
  group "Processors from rest to full load (nessie §6.3)" \
    "loch bench --engine E ${loaded[*]} --rate P% --seconds 2" speed server-cores client-cores latency
  for percent in 0 5 20 40 60 80; do
    run "$percent % load" --engine "$trio" "${loaded[@]}" --rate "$percent%" --seconds 2
    for engine in nessie-hybrid nessie-server; do
      as="$engine, dedicated"
      run "$percent % load" --engine "$engine" "${loaded[@]}" --rate "$percent%" --seconds 2 --dedicated
      as=
    done
  done
fi

if wanted d; then
  one_core=(--records 1000000 --clients 1)
  group "Pilaf with one server core (pilaf §5.4, Figure 10)" \
    "loch bench --engine pilaf --peer memcached,redis and loch-papers bench --baseline pilaf-vo, ${one_core[*]} --reads S --value-size V --lanes L --seconds 2" \
    speed-of-first-column speed-per-server-core latency server-cores
  for reads in 0.9 0.5; do
    for lanes in 1 16; do
      share=$(awk "BEGIN { print 100 * $reads }")
      for systems in "--engine pilaf" "--baseline pilaf-vo" "--engine none --peer memcached,redis"; do
        # shellcheck disable=SC2086
        run "64 B, $share % GETs, $lanes at a time" $systems "${one_core[@]}" --lanes "$lanes" \
          --value-size 64 --reads "$reads" --seconds 2
      done
    done
  done
  group "Pilaf's probes and races (pilaf §3.4, §5.3)" "cargo bench -p loch-engines --bench pilaf"
  # It prints them before it measures anything, which is not asked for.
  micro pilaf '^nothing$'
fi

if wanted e; then
  group "What HERD's prefetching hides (herd §4.1.1, Figure 7)" \
    "cargo bench -p loch-engines --bench herd"
  micro herd 'random accesses|a worker with|slots polled'
  cores=(--engine herd --value-size 32 --reads 0.95 --records 1000000 --lanes 32)
  group "HERD's partitions under skew, two workers (herd §5.7)" \
    "loch bench ${cores[*]} --workers 2 --dist D --seconds 2" speed-of-first-row latency
  for dist in uniform zipf:0.99; do
    run "$dist" "${cores[@]}" --workers 2 --dist "$dist" --seconds 2
  done
  simulated=(--fabric sim --profile connectx3-56g --clients 51 --client-hosts 17 --lanes 4 --window 4)
  cores=(--engine herd --value-size 32 --reads 0.95 --records 200000)
  group "HERD's partitions under skew, simulated (herd §5.7, Figure 14)" \
    "loch bench ${cores[*]} ${simulated[*]} --workers W --dist D --seconds 0.003" speed workers
  for workers in 6 10; do
    for dist in uniform zipf:0.99; do
      run "$workers workers, $dist" "${cores[@]}" "${simulated[@]}" --workers "$workers" --dist "$dist" \
        --seconds 0.003
    done
  done
fi

make_tables
publish
