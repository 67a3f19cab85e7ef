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
# shellcheck disable=SC2034
smoke_records=2000
# shellcheck source=scripts/simulated-results.sh
. "$(dirname "$0")/simulated-results.sh"

group "One operation at a time" "loch bench --fabric sim --profile P --nodes 2 --lanes 1 --reads S"
for profile in connectx3-10g connectx3-56g connectx6-200g; do
  for reads in 1 0; do
    run "$profile" --profile "$profile" --nodes 2 --clients 1 --lanes 1 --records 100000 \
      --reads "$reads" --cache off --seconds 0.02
  done
done

group "More nodes" "loch bench --fabric sim --profile P --nodes N --clients C --lanes 16 --reads S --records 1000000"
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

group "More nodes, with connections of hosts" "loch bench --fabric sim --profile connectx3-10g --nodes N --clients C --lanes 16 --reads S --records 1000000 --connections host"
for nodes in 1 2 4 8 16 32 64; do
  clients=$((nodes * 16))
  [ "$nodes" -lt 64 ] || clients=1000
  for reads in 0.9 0.5; do
    run connectx3-10g --profile connectx3-10g --nodes "$nodes" --clients "$clients" --lanes 16 \
      --reads "$reads" --records 1000000 --seconds 0.005 --connections host
  done
done

# nessie §6: 15 nodes of 12 threads, keys of 128 B, index slots filled to 40 %. There a node holds
# 20 GB, of which a cache holds little; here, where records are few, there is none.
group "Sizes of values on the cluster of the Nessie paper" \
  "loch bench --fabric sim --profile connectx3-10g --nodes 15 --clients 180 --lanes 1 --key-size 128 --value-size V --reads S --index-fill 40 --cache off"
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

publish
