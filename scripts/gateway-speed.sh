#!/usr/bin/env bash
# Compares `loch gateway` with the stores whose protocols it speaks: the same load program asks
# memcached and the gateway's port for memcached, then Redis and the gateway's port for RESP. Each
# server has one thread, because Redis has one. Takes half an hour of a machine that does nothing else.
#
#   scripts/gateway-speed.sh [--turns N] [--seconds T] [--minutes M] [--smoke]
#
# Writes tables in Markdown to stdout. The two stores of a pair take seven turns in each measurement of
# T seconds (1), of which the ratio is the median. All measurements are made N times (3), one after
# the other, and the tables have their medians. After M minutes (60) the tables have what there is by
# then. With --smoke everything is tiny and says nothing about speed: it shows that the script works.
# LOCH names a binary to use instead of building it.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,${ /^#/!q; s/^# \{0,1\}//; p; }' "$0" >&2 && exit 2; }

turns=3 seconds=1 minutes=60 smoke=
while [ $# -gt 0 ]; do
  case $1 in
    --smoke) smoke=yes turns=1 seconds=0.1 && shift && continue ;;
    --turns) turns=${2:-} ;;
    --seconds) seconds=${2:-} ;;
    --minutes) minutes=${2:-} ;;
    *) usage ;;
  esac
  [[ ${2:-} =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage
  shift 2
done
[[ $turns$minutes != *.* ]] || usage

name=gateway-speed
folder=${CARGO_TARGET_DIR:-target}/$name
# The tables are not those of loch-papers.
LOCH_PAPERS=none
if [ -z "${LOCH:-}" ]; then
  cargo build --release --locked --quiet -p loch-cli
  LOCH=${CARGO_TARGET_DIR:-target}/release/loch
fi
# shellcheck source=scripts/results.sh
. scripts/results.sh

[ -n "$smoke" ] || warn_if_busy

# The stores of a measurement hold less than half a GiB. Redis has up to half a GiB of replies under
# way besides: 1 MiB for each of 16 times 32 requests.
sizes=(64 1KiB 16KiB 1MiB)
declare -A records=([64]=200000 [1KiB]=100000 [16KiB]=8192 [1MiB]=64)
transports=(unix tcp) connections=(1 16) depths=(1 32)
pairs=(memcached,gateway-memcached redis,gateway-resp)
[ -z "$smoke" ] || sizes=(64 1MiB) connections=(2)

# One measurement: a line with the operations a second of the store and of the gateway, and the ratio.
measure() { # TRANSPORT PAIR SIZE CONNECTIONS DEPTH READS
  local count=${smoke:+16}
  local options=(--json --engine none --peer "$2" --peer-transport "$1" --peer-threads 1
    --dist uniform --value-size "$3" --records "${count:-${records[$3]}}" --clients "$4"
    --lanes "$5" --reads "$6" --seconds "$seconds")
  bench "" "${options[@]}" | sed -n 's/.*"ops_per_s":\([^,]*\).*"times_the_first":\([^,]*\).*/\1 \2/p' |
    awk -v cell="$*" 'NR == 1 { store = $1 }
      NR == 2 { print cell, store, $1, $2 }' >>"$results"
}

# The cells of the tables, in the order in which they are measured.
cells() {
  local transport size connection depth reads pair
  for transport in "${transports[@]}"; do
    for size in "${sizes[@]}"; do
      for connection in "${connections[@]}"; do
        for depth in "${depths[@]}"; do
          for reads in 1.0 0.0; do
            for pair in "${pairs[@]}"; do
              echo "$transport $pair $size $connection $depth $reads"
            done
          done
        done
      done
    done
  done
}

measure_all() {
  local turn cell
  for ((turn = 1; turn <= turns; turn++)); do
    while read -ra cell; do
      if ((SECONDS > minutes * 60)); then
        say "the time is up in turn $turn of $turns"
        return
      fi
      measure "${cell[@]}" </dev/null || say "not measured: ${cell[*]}"
    done < <(cells)
  done
}

tables() {
  awk -v all_transports="${transports[*]}" -v all_sizes="${sizes[*]}" -v all_pairs="${pairs[*]}" \
    -v all_connections="${connections[*]}" -v all_depths="${depths[*]}" '
    { cell = $1 " " $2 " " $3 " " $4 " " $5 " " $6
      for (what = 7; what <= 9; what++) seen[cell, what, ++n[cell, what]] = $what }

    function median(cell, what,    count, i, j, swap, v) {
      count = n[cell, what]
      for (i = 1; i <= count; i++) v[i] = seen[cell, what, i] + 0
      for (i = 2; i <= count; i++)
        for (j = i; j > 1 && v[j - 1] > v[j]; j--) { swap = v[j]; v[j] = v[j - 1]; v[j - 1] = swap }
      return (v[int((count + 1) / 2)] + v[int(count / 2) + 1]) / 2
    }
    function short(x) {
      return x >= 1e6 ? sprintf("%.2f M", x / 1e6) : x >= 1e4 ? sprintf("%.0f k", x / 1e3) : \
        x >= 1e3 ? sprintf("%.1f k", x / 1e3) : sprintf("%.0f", x)
    }
    function columns(cell, wanted,    ratio, shown) {
      if (!n[cell, 9]) return " – | – | – |"
      ratio = median(cell, 9)
      all++
      missed += ratio < wanted
      shown = sprintf(ratio < wanted ? "**%.2f**" : "%.2f", ratio)
      return " " short(median(cell, 7)) " | " short(median(cell, 8)) " | " shown " |"
    }

    END {
      split(all_transports, transports)
      split(all_pairs, pairs)
      split(all_sizes, sizes)
      split(all_connections, connections)
      split(all_depths, depths)
      for (t = 1; t in transports; t++)
        for (p = 1; p in pairs; p++) {
          store = pairs[p]
          sub(/,.*/, "", store)
          wanted = store == "redis" ? 1.3 : 1
          print "\n## " store " over " transports[t] ", × wanted: " wanted "\n"
          print "| value | connections | deep | GET/s: " store " | gateway | × |" \
            " SET/s: " store " | gateway | × |"
          print "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
          for (s = 1; s in sizes; s++)
            for (c = 1; c in connections; c++)
              for (d = 1; d in depths; d++) {
                cell = transports[t] " " pairs[p] " " sizes[s] " " connections[c] " " depths[d]
                print "| " sizes[s] " | " connections[c] " | " depths[d] " |" \
                  columns(cell " 1.0", wanted) columns(cell " 0.0", wanted)
              }
        }
      print "\n" missed + 0 " of " all + 0 " ratios, those in bold, are below what is wanted."
    }' "$results"
}

measure_all
echo "# The gateway beside memcached and Redis"
echo
echo "Commit $commit, $(date -u +%F), $host. Medians of up to $turns measurements of $seconds s each."
tables
