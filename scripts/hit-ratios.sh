#!/usr/bin/env bash
# Measures the hit ratios of Loch's tables that evict, beside memcached, Redis and simulated policies,
# on traces of fixed seeds and on public ones. Times say nothing here, so the machine may be busy.
#
#   scripts/hit-ratios.sh [--smoke] [FOLDER]     default folder: docs/results
#
# Writes FOLDER/hit-ratios.jsonl, one object a line: a header that says where and how, and a row for
# each trace, size of the cache and system; and FOLDER/hit-ratios.md, the same as tables. Python's
# packages (scripts/hit-ratios.txt) go into an environment below the target folder. With --smoke
# everything is tiny, and no public trace is fetched. LOCH names a binary to use instead of building
# it, HIT_RATIOS_LANES how many requests memcached and Redis have under way (1).
set -euo pipefail
cd "$(dirname "$0")/.."

smoke=
if [ "${1:-}" = --smoke ]; then smoke=--smoke && shift; fi
folder=${1:-docs/results}
name=hit-ratios
lanes=${HIT_RATIOS_LANES:-1}
# The tables are not those of loch-papers.
LOCH_PAPERS=none
if [ -z "${LOCH:-}" ]; then
  cargo build --release --locked --quiet -p loch-cli
  LOCH=${CARGO_TARGET_DIR:-target}/release/loch
fi
# shellcheck source=scripts/results.sh
. scripts/results.sh

work=${CARGO_TARGET_DIR:-target}/hit-ratios
mkdir -p "$work"
if [ ! -e "$work/python/ready" ]; then
  say "installing scripts/hit-ratios.txt"
  python3 -m venv "$work/python"
  "$work/python/bin/pip" install --quiet -r scripts/hit-ratios.txt
  touch "$work/python/ready"
fi
parts() { "$work/python/bin/python" scripts/hit-ratios.py "$@"; }

# The source package of libcachesim has public traces; its wheels have none.
public=$work/public
if [ -z "$smoke" ] && [ ! -e "$public/ready" ]; then
  say "fetching public traces"
  package=$(sed -n 's/^libcachesim==/&/p' scripts/hit-ratios.txt)
  "$work/python/bin/pip" download --quiet --no-deps --no-binary :all: --no-build-isolation \
    --dest "$work" "$package"
  mkdir -p "$public"
  tar -xzf "$work"/libcachesim-*.tar.gz -C "$public" --strip-components=4 --wildcards \
    '*/libCacheSim/data/cloudPhysicsIO.oracleGeneral.bin' \
    '*/libCacheSim/data/twitter_cluster52_10m.csv.zst'
  zstd -dqf "$public/twitter_cluster52_10m.csv.zst"
  touch "$public/ready"
fi

declare -a traces
mapfile -t traces < <(parts traces "$work/traces" ${smoke:-"$public"})

printf '{"title":"Hit ratios","commit":"%s","date":"%s","host":"%s","lanes":%s}\n' \
  "$commit" "$(date -u +%F)" "$host" "$lanes" >"$results"

# Replays a trace on caches of so many bytes. The other arguments are options of the bench.
replay() { # TRACE PERCENT BYTES LABEL OPTION…
  local trace=$1 percent=$2 bytes=$3 label=$4
  "$LOCH" bench --json --trace "$trace" --eviction sieve --memory "$bytes" "${@:5}" |
    parts rows "$trace" "$percent" "$label"
}

# The same on Loch: one request at a time.
replay_loch() { # TRACE PERCENT BYTES LABEL
  replay "$@" --lanes 1 --index-slots "$(parts slots "$1" "$3")"
}

# The policies, each in a process of its own: some end badly for some sizes.
policies() { # TRACE PERCENT BYTES
  local policy
  for policy in LRU S3-FIFO SIEVE W-TinyLFU Belady; do
    timeout 900 "$work/python/bin/python" scripts/hit-ratios.py policy "$1" "$policy" "$3" "$2" \
      2>/dev/null | grep -a '^{' || say "  $policy: libCacheSim failed"
  done
}

# A field of the row of a system in a file of rows.
field() { # FILE SYSTEM FIELD
  sed -n "s/.*\"system\": \"$2\".*\"$3\": \([0-9]*\).*/\1/p" "$1"
}

for trace in "${traces[@]}"; do
  for percent in 1 5 10 25; do
    bytes=$(parts memory "$trace" "$percent")
    [ "$bytes" -gt 0 ] || continue
    say "$(basename "$trace" .oracleGeneral.bin) at $percent %: $bytes bytes"
    simulated=$work/simulated rows=$work/rows
    policies "$trace" "$percent" "$bytes" >"$simulated" &
    replay_loch "$trace" "$percent" "$bytes" Loch >"$rows"
    replay "$trace" "$percent" "$bytes" peer --engine none --peer memcached,redis,redis-lfu \
      --lanes "$lanes" >>"$rows"
    wait
    # Then Loch with as much memory as memcached's values took, if that is more than they may.
    took=$(field "$rows" memcached bytes_held)
    [ "${took:?memcached did not say what it holds}" -le "$bytes" ] || replay_loch "$trace" "$percent" "$took" "Loch, same bytes" >>"$rows"
    # And with the memory that it needs for as many values as LRU held.
    held=$(field "$rows" Loch values_held) wanted=$(field "$simulated" LRU values_held)
    more=$(parts alone "$trace" "$bytes" "$held" "$wanted")
    [ "$more" = 0 ] || replay_loch "$trace" "$percent" "$more" "Loch alone" >>"$rows"
    cat "$simulated" "$rows" >>"$results"
  done
done

parts table "$results" >"$folder/$name.md"
say "wrote $folder/$name.md"
publish
