#!/usr/bin/env bash
# Measures the engines whose servers take part, beside the ones whose servers do not, on simulated
# clusters of the papers' scale. Takes about a quarter of an hour and 6 GiB of memory. Times are virtual,
# so the results are the same on any machine.
#
#   scripts/simulated-servers.sh [--smoke] [FOLDER]     default folder: docs/results
#
# Writes FOLDER/simulated-servers.jsonl, one object a line: headers that say what is measured, and
# below each the results of `loch bench --fabric sim --json`. With --smoke everything is tiny and says
# nothing: it shows that the script works. LOCH names a binary to use instead of building one.
set -euo pipefail
# shellcheck disable=SC2034
smoke_records=600
# shellcheck source=scripts/simulated-results.sh
. "$(dirname "$0")/simulated-results.sh"

# nessie §6.2, Figures 5 to 7: 15 nodes, 12 threads each. With nessie all of them are clients; with
# the others some are workers, as many as the paper found best (§6). A node of the paper holds 20 GB;
# here there are so few records that memory suffices, but many times as many as operations under
# way. Caches, which would hold few of 20 GB, are off, and as in the paper the hybrid version has
# neither filter bits nor multiple READs; nessie-hybrid+ has both.
group "Figures 5 to 7 of the Nessie paper" \
  "--profile connectx3-10g --nodes 15 --clients C --workers W --lanes 1 --key-size 128 --value-size V --reads S --records R --index-fill 40 --cache off"
while read -r size records seconds; do
  for reads in 0.5 0.9 0.99; do
    server=2
    [ "$size" != 256 ] || server=3
    hybrid=3
    [ "$size" != 128KiB ] || hybrid=2
    [ "$reads" = 0.5 ] || hybrid=1
    cluster() {
      local variant=$1 workers=$2
      run "$variant" --profile connectx3-10g --nodes 15 --clients $((15 * (12 - workers))) \
        --lanes 1 --key-size 128 --value-size "$size" --records "$records" --index-fill 40 \
        --cache off --reads "$reads" --seconds "$seconds" "${@:3}"
    }
    cluster nessie 0 --engine nessie
    cluster nessie-published 0 --engine nessie-published
    cluster nessie-server "$server" --engine nessie-server --workers "$server"
    cluster nessie-hybrid "$hybrid" --engine nessie-hybrid --workers "$hybrid" --filter-bits off \
      --multi-read off
    cluster nessie-hybrid+ "$hybrid" --engine nessie-hybrid --workers "$hybrid"
  done
done <<'SIZES'
256 60000 0.002
2KiB 60000 0.003
8KiB 30000 0.005
16KiB 15000 0.01
128KiB 3000 0.04
SIZES

# herd §5.2, Figure 9 (six server processes), and Figure 13 (one core and more): 51 clients on 17
# machines, a window of 4, items of 16 + 32 bytes.
group "HERD, Figures 9 and 13: one server, 51 clients on 17 hosts" \
  "--profile connectx3-56g --engine herd --clients 51 --client-hosts 17 --lanes 4 --window 4 --workers W --value-size 32 --records 200000 --reads S"
for workers in 1 2 4 6 10 16; do
  for reads in 0.95 0.5; do
    run "$workers workers" --profile connectx3-56g --engine herd --clients 51 --client-hosts 17 \
      --lanes 4 --window 4 --workers "$workers" --value-size 32 --records 200000 --reads "$reads" \
      --seconds 0.003
  done
done

publish
