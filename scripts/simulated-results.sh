# shellcheck shell=bash
# Sourced by the scripts that measure simulated clusters: their arguments, and the results that
# become FOLDER/NAME.jsonl. Before it is sourced, `smoke_records` is what --records is in a smoke
# run.
# shellcheck disable=SC2154

cd "$(dirname "$0")/.." || exit
name=$(basename "$0" .sh)

smoke=
[ "${1:-}" != --smoke ] || { smoke=yes && shift; }
if [[ $# -gt 1 || ${1:-} == -* ]]; then
  # The script's own words on itself.
  sed -n '2,${ /^#/!q; s/^# \{0,1\}//; p; }' "scripts/$name.sh" >&2
  exit 2
fi
folder=${1:-docs/results}

# shellcheck disable=SC2034
host=simulated
# shellcheck source=scripts/results.sh
. scripts/results.sh

# Runs the bench, with uniform keys unless told otherwise. In a smoke run there are few records and
# little time.
run() {
  local variant=$1 options=(--fabric sim --json "${@:2}") at
  [[ " ${options[*]} " == *" --dist "* ]] || options+=(--dist uniform)
  for at in "${!options[@]}"; do
    [ -z "$smoke" ] || [ "${options[at]}" != --records ] || options[at + 1]=$smoke_records
    [ -z "$smoke" ] || [ "${options[at]}" != --seconds ] || options[at + 1]=0.0001
  done
  bench "$variant" "${options[@]}" | sed "s/^{/{\"variant\":\"$variant\",/" >>"$results"
}
