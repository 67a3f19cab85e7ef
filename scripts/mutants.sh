#!/usr/bin/env bash
# Changes the code that reuses memory, serves requests, keeps the log, executes verbs over TCP and
# answers at the gateway, one operator or function at a time, and shows which changes no test notices
# (docs/correctness.md, "Mutants").
#
#   scripts/mutants.sh [ARG…]     arguments of `cargo mutants`: --list, --re layout/slab.rs, --shard 0/8, …;
#                                 all of them: `cargo mutants --help`
#
# All mutants take more than a day, those of one file minutes to an hour. Fails if a missed mutant is
# not in docs/mutants.txt, where each has its reason; `mutants.out` in `target/mutants/engines`,
# `fabric` and `gateway` has the details.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  -h | --help) sed -n '2,${ /^#/!q; s/^# \{0,1\}//; p; }' scripts/mutants.sh && exit ;;
esac

scripts/deps.sh build mutants
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
# Of each subject; and what a property test finds is no seed for the next mutant.
export LOCH_SEEDS=100 PROPTEST_FAILURE_PERSISTENCE=off
out=${CARGO_TARGET_DIR:-target}/mutants
missed=
for crate in engines fabric gateway; do
  rm -rf "$out/$crate"
  mkdir -p "$out/$crate"
  status=0
  cargo mutants --config ".cargo/mutants-$crate.toml" --output "$out/$crate" "$@" || status=$?
  # 2: some were missed. 3: some took too long, which is as good as noticed; some may be missed
  # besides.
  case $status in
    0 | 2 | 3) ;;
    *) exit "$status" ;;
  esac
  # There is none if the arguments choose no mutant of this crate.
  found=$out/$crate/mutants.out/missed.txt
  [ ! -e "$found" ] || missed+=$(cat "$found")$'\n'
done
# Where a mutant is changes with every line above it; what it is does not.
missed=$(printf '%s' "$missed" | sed -E 's/^([^:]+):[0-9]+:[0-9]+: /\1: /' | sed '/^$/d' | sort |
  comm -23 - <(grep -v '^#' docs/mutants.txt | cut -f 1 | sort))
if [ -n "$missed" ]; then
  printf 'missed, and without a reason in docs/mutants.txt:\n%s\n' "$missed" >&2
  exit 2
fi
