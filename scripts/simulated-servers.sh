#!/usr/bin/env bash
# Measures the engines whose servers take part, beside the engines whose servers do not, on
# simulated clusters of the papers' scale. Takes about half an hour and 6 GiB of memory. Times are
# virtual, so the results are the same on any machine.
#
#   scripts/simulated-servers.sh [--smoke] [FOLDER]     default folder: docs/results
#
# Writes FOLDER/simulated-servers.jsonl, one object a line: headers that say what is measured, and
# below each the results of `loch bench --fabric sim --json`. With --smoke everything is tiny and says
# nothing: it shows that the script works. LOCH and LOCH_PAPERS name binaries to use instead of
# building them.
set -euo pipefail
# shellcheck disable=SC2034
smoke_records=600
# shellcheck source=scripts/simulated-results.sh
. "$(dirname "$0")/simulated-results.sh"

# Clusters of the Nessie paper: 15 nodes, 12 threads each. With nessie all of them are clients; with
# the others some are workers, as many as the paper found best (nessie §6). A node of the paper holds
# 20 GB; here there are so few records that memory suffices, but many times as many as operations
# under way.
cluster() { # VARIANT WORKERS SIZE READS OPTION…
  local variant=$1 workers=$2 size=$3 reads=$4 records seconds
  read -r records seconds <<<"${sizes[$size]}"
  run "$variant" --profile connectx3-10g --nodes 15 --clients $((15 * (12 - workers))) --lanes 1 \
    --key-size 128 --value-size "$size" --records "$records" --index-fill 40 --bucket-slots 1 \
    --reads "$reads" --cache-lines $((records / 200)) --seconds "${longer:-$seconds}" "${@:5}"
}
declare -A sizes=(
  [256]="60000 0.002" [2KiB]="60000 0.003" [4KiB]="60000 0.003" [8KiB]="30000 0.005"
  [16KiB]="15000 0.01" [32KiB]="9000 0.02" [64KiB]="6000 0.03" [128KiB]="3000 0.04"
)
command="loch bench --fabric sim --profile connectx3-10g --nodes 15 --clients C --workers W --lanes 1 --key-size 128 --value-size V --reads S --records R --index-fill 40 --bucket-slots 1"

# Workers of a node that the paper found best.
server_workers() { [ "$1" = 256 ] && echo 3 || echo 2; }                     # SIZE
hybrid_workers() {                                                           # SIZE READS
  case $1,$2 in
    64KiB,0.5 | 128KiB,0.5) echo 2 ;;
    *,0.5) echo 3 ;;
    *) echo 1 ;;
  esac
}

# nessie §6.1, Figure 4. Long enough for many of the scheduler's slices.
group "Figure 4 of the Nessie paper" "$command --cache off --background-hogs H"
for hogs in 0 1 2 4 6 8 10 12; do
  longer=0.05
  options=(16KiB 0.9 --cache off --background-hogs "$hogs")
  cluster nessie 0 "${options[@]}" --engine nessie
  cluster nessie-server 2 "${options[@]}" --engine nessie-server --workers 2
  cluster nessie-hybrid 1 "${options[@]}" --engine nessie-hybrid --workers 1
  longer=
done

# nessie §6.2, Figures 5 to 7 and Table 1. Caches, which would hold few of 20 GB, are off, and as in
# the paper the hybrid version has neither filter bits nor multiple READs; nessie-hybrid+ has both.
group "Figures 5 to 7 of the Nessie paper" "$command --cache off"
for size in 256 2KiB 4KiB 8KiB 16KiB 32KiB 64KiB 128KiB; do
  for reads in 0.5 0.9 0.99; do
    server=$(server_workers "$size")
    workers=$(hybrid_workers "$size" "$reads")
    cluster nessie 0 "$size" "$reads" --cache off --engine nessie
    cluster nessie-published 0 "$size" "$reads" --cache off --engine nessie-published
    cluster nessie-server "$server" "$size" "$reads" --cache off --engine nessie-server \
      --workers "$server"
    for hybrid in nessie-hybrid nessie-hybrid+; do
      cluster "$hybrid" "$workers" "$size" "$reads" --cache off --engine "$hybrid" \
        --workers "$workers"
    done
  done
done

# nessie §6.2, Figures 12 and 13. Caches hold whole entries, of 0.5 % of the keys.
skewed=(--dist zipf:0.99 --cache on --cache-entry-max 256KiB)
group "Figure 12 of the Nessie paper" "$command ${skewed[*]}"
for size in 256 2KiB 8KiB 16KiB 128KiB; do
  for reads in 0.5 0.9 0.99; do
    server=$(server_workers "$size")
    cluster nessie 0 "$size" "$reads" "${skewed[@]}" --engine nessie
    cluster nessie-published 0 "$size" "$reads" "${skewed[@]}" --engine nessie-published
    cluster nessie-server "$server" "$size" "$reads" --dist zipf:0.99 --engine nessie-server \
      --workers "$server"
  done
done
group "Figure 13 of the Nessie paper" "$command --engine nessie-published ${skewed[*]} SWITCH"
for reads in 0.5 0.99; do
  off=(--filter-bits off --cache off --previous-versions off --multi-read off)
  for step in basic "+ filter" "+ caching" "+ previous versions" "+ multi-read"; do
    cluster "$step" 0 16KiB "$reads" --dist zipf:0.99 --cache-entry-max 256KiB \
      --engine nessie-published "${off[@]}"
    off=("${off[@]:2}")
  done
done

# herd §5.2, Figure 9 (six server processes), and Figure 13 (one core and more): 51 clients on 17
# machines, a window of 4, items of 16 + 32 bytes.
group "HERD, Figures 9 and 13: one server, 51 clients on 17 hosts" \
  "loch bench --fabric sim --profile connectx3-56g --engine herd --clients 51 --client-hosts 17 --lanes 4 --window 4 --workers W --value-size 32 --records 200000 --reads S"
for workers in 1 2 4 6 10 16; do
  for reads in 0.95 0.5; do
    run "$workers workers" --profile connectx3-56g --engine herd --clients 51 --client-hosts 17 \
      --lanes 4 --window 4 --workers "$workers" --value-size 32 --records 200000 --reads "$reads" \
      --seconds 0.003
  done
done

# herd §3.3, Figure 5 (requests and replies of 32 bytes), and §5.3, Figures 9 and 10: FaRM as HERD's
# authors emulate it, beside HERD, as above. A worker of FaRM-em does nothing but PUTs.
one_server() {
  run "$1" --profile connectx3-56g --clients 51 --client-hosts 17 --lanes 4 --window 4 --workers 6 \
    --records 60000 --seconds 0.002 "${@:2}"
}
group "HERD, Figure 5: ECHO" \
  "loch-papers bench --fabric sim --profile connectx3-56g --baseline B --clients 51 --client-hosts 17 --lanes 4 --window 4 --workers 6 --value-size 32 --reads 0.5"
for echo in echo-send-send echo-write-write echo-write-send; do
  one_server "32 B" --baseline "$echo" --value-size 32 --reads 0.5
done
group "HERD, Figures 9 and 10: HERD and FaRM" \
  "loch bench --engine herd and loch-papers bench --baseline B, --fabric sim --profile connectx3-56g --clients 51 --client-hosts 17 --lanes 4 --window 4 --workers 6 --value-size V --reads S"
for system in "--engine herd" "--baseline farm-em" "--baseline farm-em-var"; do
  for reads in 0.95 0.5 0; do
    # shellcheck disable=SC2086
    one_server "32 B" $system --value-size 32 --reads "$reads"
  done
  for size in 8 16 64 128 256 512; do
    # shellcheck disable=SC2086
    one_server "$size B" $system --value-size "$size" --reads 0.95
  done
done

publish
