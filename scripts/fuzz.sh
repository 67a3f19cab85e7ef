#!/usr/bin/env bash
# Fuzzes all code that parses bytes from other processes, under AddressSanitizer: docs/fuzzing.md.
#
#   scripts/fuzz.sh [TARGET…] [--seconds N]     default: all targets, 60 seconds each
#
# New inputs stay in fuzz/corpus.new, where the next run continues. Failing inputs are written to
# fuzz/artifacts, with the command that repeats them. After the fix, move them to fuzz/regressions,
# under a name that tells the story. Needs a nightly compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  sed -n 's/^# \{0,1\}//; 2,8p' "$0" >&2
  exit 2
}

all=()
for file in fuzz/fuzz_targets/*.rs; do
  all+=("$(basename "$file" .rs)")
done

targets=()
seconds=60
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2:?--seconds needs a number}; shift ;;
    -*) usage ;;
    *)
      [ -f "fuzz/fuzz_targets/$1.rs" ] || { echo "fuzz: no target $1; there are: ${all[*]}" >&2; exit 2; }
      targets+=("$1")
      ;;
  esac
  shift
done
[[ $seconds =~ ^[0-9]+$ ]] || usage
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")

if ! rustc +nightly --version >/dev/null 2>&1; then
  echo "fuzz: missing: a nightly compiler. Run 'rustup toolchain install nightly --profile minimal'." >&2
  exit 1
fi
scripts/deps.sh build fuzz
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/fuzz"
# Relative to the checkout, and cargo-fuzz works in another folder.
case $CARGO_TARGET_DIR in /*) ;; *) CARGO_TARGET_DIR=$PWD/$CARGO_TARGET_DIR ;; esac
# A target keeps its tables for the life of its thread.
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"

failed=()
for target in "${targets[@]}"; do
  new=fuzz/corpus.new/$target
  mkdir -p "$new"
  folders=("$new" "fuzz/corpus/$target")
  [ ! -d "fuzz/regressions/$target" ] || folders+=("fuzz/regressions/$target")
  echo "fuzz: $target for $seconds seconds" >&2
  # One allocation of 64 MiB is more than any of these inputs can ask for.
  cargo +nightly fuzz run --fuzz-dir fuzz "$target" "${folders[@]}" -- \
    -max_total_time="$seconds" -max_len=1024 -timeout=20 -malloc_limit_mb=64 -print_final_stats=1 ||
    failed+=("$target")
done
[ ${#failed[@]} -eq 0 ] || { echo "fuzz: failed: ${failed[*]}" >&2; exit 1; }
