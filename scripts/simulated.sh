#!/usr/bin/env bash
# Measures the engine on simulated clusters of up to 64 nodes. Takes about a quarter of an hour and
# 4 GiB of memory. All times are virtual, so the results are the same on any machine.
#
#   scripts/simulated.sh [--smoke] [FOLDER]     default folder: docs/results
#
# Writes FOLDER/simulated.jsonl, one object a line: headers that say what is measured, and below each
# the results of `loch bench --fabric sim --json`. With --smoke everything is tiny and says nothing:
# it shows that the script works.
set -euo pipefail
cd "$(dirname "$0")/.."

smoke=
[ "${1:-}" != --smoke ] || { smoke=yes && shift; }
if [[ $# -gt 1 || ${1:-} == -* ]]; then
  sed -n 's/^# \{0,1\}//; 2,9p' "$0" >&2
  exit 2
fi
folder=${1:-docs/results}

say() { echo "simulated: $*" >&2; }

cargo build --release --locked --quiet -p loch-cli
loch=${CARGO_TARGET_DIR:-target}/release/loch
mkdir -p "$folder"
results=$(mktemp "$folder/simulated.XXXXXX")
trap 'rm -f "$results"' EXIT

commit=$(git describe --always --dirty 2>/dev/null || echo unknown)

# Begins a group of results: its title, and how each of them is made.
group() {
  say "$1"
  printf '{"title":"%s","commit":"%s","date":"%s","command":"loch bench --fabric sim %s"}\n' \
    "$1" "$commit" "$(date -u +%F)" "$2" >>"$results"
}

# Runs the bench. In a smoke run there are few records and little time.
run() {
  local variant=$1 options=(--fabric sim --json --dist uniform "${@:2}") at
  for at in "${!options[@]}"; do
    [ -z "$smoke" ] || [ "${options[at]}" != --records ] || options[at + 1]=2000
    [ -z "$smoke" ] || [ "${options[at]}" != --seconds ] || options[at + 1]=0.0001
  done
  say "  $variant: loch bench ${options[*]}"
  "$loch" bench "${options[@]}" | sed "s/^{/{\"variant\":\"$variant\",/" >>"$results"
}

group "One operation at a time" "--profile P --nodes 2 --lanes 1 --reads S"
for profile in connectx3-10g connectx3-56g connectx6-200g; do
  for reads in 1 0; do
    run "$profile" --profile "$profile" --nodes 2 --clients 1 --lanes 1 --records 100000 \
      --reads "$reads" --cache off --seconds 0.02
  done
done

group "More nodes" "--profile P --nodes N --clients C --lanes 16 --reads S --records 1000000"
for profile in connectx3-10g connectx6-200g; do
  # What is done in a virtual millisecond differs by more than a decade.
  seconds=0.005
  [ "$profile" = connectx3-10g ] || seconds=0.001
  for nodes in 1 2 4 8 16 32 64; do
    clients=$((nodes * 16))
    [ "$nodes" -lt 64 ] || clients=1000
    for reads in 0.9 0.5; do
      run "$profile" --profile "$profile" --nodes "$nodes" --clients "$clients" --lanes 16 \
        --reads "$reads" --records 1000000 --seconds "$seconds"
    done
  done
done

# nessie §6: 15 nodes of 12 threads, keys of 128 B, index slots filled to 40 %. There a node holds
# 20 GB, of which a cache holds little; here, where records are few, there is none.
group "Sizes of values on the cluster of the Nessie paper" \
  "--profile connectx3-10g --nodes 15 --clients 180 --lanes 1 --key-size 128 --value-size V --reads S --index-fill 40 --cache off"
while read -r size records seconds; do
  for reads in 0.5 0.9 0.99; do
    run connectx3-10g --profile connectx3-10g --nodes 15 --clients 180 --lanes 1 --key-size 128 \
      --value-size "$size" --records "$records" --index-fill 40 --cache off --reads "$reads" \
      --seconds "$seconds"
  done
done <<'SIZES'
64 300000 0.02
1KiB 300000 0.02
2KiB 300000 0.02
16KiB 60000 0.05
128KiB 7200 0.2
SIZES

chmod 644 "$results"
mv "$results" "$folder/simulated.jsonl"
say "wrote $folder/simulated.jsonl"
