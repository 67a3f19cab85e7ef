# shellcheck shell=bash
# Sourced by the scripts that measure simulated clusters: their arguments, and the results that
# become FOLDER/NAME.jsonl. Before it is sourced, `smoke_records` is what --records is in a smoke
# run. LOCH names a binary to use instead of building one.
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

say() { echo "$name: $*" >&2; }

if [ -z "${LOCH:-}" ]; then
  cargo build --release --locked --quiet -p loch-cli
  LOCH=${CARGO_TARGET_DIR:-target}/release/loch
fi
mkdir -p "$folder"
results=$(mktemp "$folder/$name.XXXXXX")
trap 'rm -f "$results"' EXIT

commit=$(git describe --always --dirty 2>/dev/null || echo unknown)

# Begins a group of results: its title, and how each of them is made.
group() {
  say "$1"
  printf '{"title":"%s","commit":"%s","date":"%s","command":"loch bench --fabric sim %s"}\n' \
    "$1" "$commit" "$(date -u +%F)" "$2" >>"$results"
}

# Runs the bench, with uniform keys unless told otherwise. In a smoke run there are few records and
# little time.
run() {
  local variant=$1 options=(--fabric sim --json "${@:2}") at
  [[ " ${options[*]} " == *" --dist "* ]] || options+=(--dist uniform)
  for at in "${!options[@]}"; do
    [ -z "$smoke" ] || [ "${options[at]}" != --records ] || options[at + 1]=$smoke_records
    [ -z "$smoke" ] || [ "${options[at]}" != --seconds ] || options[at + 1]=0.0001
  done
  say "  $variant: loch bench ${options[*]}"
  "$LOCH" bench "${options[@]}" | sed "s/^{/{\"variant\":\"$variant\",/" >>"$results"
}

# Puts the results where they belong.
publish() {
  chmod 644 "$results"
  mv "$results" "$folder/$name.jsonl"
  say "wrote $folder/$name.jsonl"
}
