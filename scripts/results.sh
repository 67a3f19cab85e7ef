# shellcheck shell=bash
# Sourced by the scripts that measure. Their results become FOLDER/NAME.jsonl, one object a line.
# Before it is sourced, `name` and `folder` are set, and `host` if results are of no host. LOCH and
# LOCH_PAPERS name binaries of `loch` and `loch-papers` to use instead of building them.
# shellcheck disable=SC2154

say() { echo "$name: $*" >&2; }

if [ -z "${LOCH:-}" ] || [ -z "${LOCH_PAPERS:-}" ]; then
  cargo build --release --locked --quiet -p loch-cli -p loch-papers
  built=${CARGO_TARGET_DIR:-target}/release
  LOCH=${LOCH:-$built/loch} LOCH_PAPERS=${LOCH_PAPERS:-$built/loch-papers}
fi
mkdir -p "$folder"
results=$(mktemp "$folder/$name.XXXXXX")
trap 'rm -f "$results"' EXIT

# A text as the inside of a JSON string.
json() { tr -d '"\134' <<<"$*" | tr '\n\t' '  ' | sed 's/ *$//'; }

# The facts on which the results depend besides the code.
this_host() {
  local model memory versions
  model=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
  memory=$(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)
  versions=$(
    memcached --version 2>/dev/null
    redis-server --version 2>/dev/null | sed -E 's/.*v=([^ ]*).*/redis \1/'
  )
  json "${model:-unknown processor}, $(nproc) cores, $memory, Linux $(uname -r), $versions"
}

commit=$(json "$(git describe --always --dirty 2>/dev/null || echo unknown)")
host=${host:-$(this_host)}

# Begins a group of results: its title, how each of them is made, and what its tables show.
group() {
  local title command shows
  title=$(json "$1") command=$(json "$2")
  shows=$(printf ',"%s"' "${@:3}")
  [ $# -gt 2 ] || shows=
  say "$1"
  printf '{"title":"%s","commit":"%s","date":"%s","host":"%s","command":"%s"%s}\n' \
    "$title" "$commit" "$(date -u +%F)" "$host" "$command" "${shows:+,\"show\":[${shows:1}]}" \
    >>"$results"
}

# Runs `loch bench`, or `loch-papers bench` for baselines.
bench() { # LABEL OPTION…
  local program=$LOCH
  [[ " ${*:2} " != *" --baseline "* ]] || program=$LOCH_PAPERS
  say "  ${1:+$1: }${program##*/} bench ${*:2}"
  "$program" bench "${@:2}"
}

warn_if_busy() {
  awk -v name="$name" '$1 > 0.5 { print name ": this machine is busy (load " $1 "): expect noise" }' \
    /proc/loadavg >&2
}

# The results as tables.
make_tables() {
  "$LOCH_PAPERS" table "$results" >"$folder/$name.md"
  say "wrote $folder/$name.md"
}

# Puts the results where they belong.
publish() {
  chmod 644 "$results"
  mv "$results" "$folder/$name.jsonl"
  say "wrote $folder/$name.jsonl"
}
