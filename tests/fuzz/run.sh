#!/usr/bin/env bash
# Fuzzes every parser for a while and fails on a finding.
#
#   tests/fuzz/run.sh [--seconds N] [--jobs N] [--keep] [TARGET...]
#
#   --seconds N  how long each target runs (60)
#   --jobs N     how many run at a time (one per core)
#   --keep       afterwards add the inputs that reach new code to tests/fuzz/corpus
#
# Needs the build of preset fuzz: cmake --preset fuzz && cmake --build --preset fuzz.
# A finding is left in build-fuzz/findings; add it to the corpus together with the fix.
set -uo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BUILD=$ROOT/build-fuzz
CORPUS=$ROOT/tests/fuzz/corpus
SECONDS_EACH=60 JOBS=$(nproc) KEEP=0 TARGETS=()
while (($#)); do
  case $1 in
    --seconds) SECONDS_EACH=${2:?} && shift ;;
    --jobs) JOBS=${2:?} && shift ;;
    --keep) KEEP=1 ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0" && exit 0 ;;
    -*) echo "unknown option $1" >&2 && exit 2 ;;
    *) TARGETS+=("$1") ;;
  esac
  shift
done
if ((${#TARGETS[@]} == 0)); then
  for binary in "$BUILD"/tests/fuzz/*_fuzz; do
    [[ -x $binary ]] && TARGETS+=("$(basename "${binary%_fuzz}")")
  done
fi
((${#TARGETS[@]} > 0)) || { echo "no harness in $BUILD; build preset fuzz first" >&2 && exit 2; }

export ASAN_OPTIONS=detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

# fuzz TARGET: new inputs go to a working corpus beside the build, which the next run starts from. The
# outer limit is for libFuzzer itself, which may hang while it reports an input that hangs.
fuzz() {
  local work=$BUILD/corpus/$1 findings=$BUILD/findings/$1-
  mkdir -p "$work" "$BUILD/findings" "$BUILD/logs"
  timeout --kill-after=5 $((SECONDS_EACH + 60)) \
    "$BUILD/tests/fuzz/$1_fuzz" "$work" "$CORPUS/$1" -max_total_time="$SECONDS_EACH" -timeout=30 \
    -rss_limit_mb=1024 -max_len=8192 -artifact_prefix="$findings" -print_final_stats=1 \
    >"$BUILD/logs/$1.log" 2>&1
}

# report TARGET STATUS: of a failure also the input itself, for the machine may be gone when it is read.
report() {
  local log=$BUILD/logs/$1.log runs coverage finding
  runs=$(awk '/number_of_executed_units/ { print $2 }' "$log")
  coverage=$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1)
  if (($2 == 0)); then
    echo "$1: ${runs:-0} runs, ${coverage:-cov: 0}, no finding"
  else
    echo "$1: FAILED (exit $2); the end of $log:"
    tail -n 40 "$log"
    for finding in "$BUILD/findings/$1"-*; do
      [[ ! -f $finding ]] || echo "finding ${finding##*/}, base64: $(base64 -w0 "$finding")"
    done
  fi
}

passed=0 failed=0 running=() failures=()
# finish_one: waits for the oldest target that runs.
finish_one() {
  local target=${running[0]%%:*} pid=${running[0]##*:} rc=0
  running=("${running[@]:1}")
  wait "$pid" || rc=$?
  report "$target" "$rc"
  if ((rc == 0)); then passed=$((passed + 1)); else failed=$((failed + 1)) failures+=("$target"); fi
}
for target in "${TARGETS[@]}"; do
  ((${#running[@]} < JOBS)) || finish_one
  fuzz "$target" &
  running+=("$target:$!")
done
while ((${#running[@]} > 0)); do finish_one; done

if ((KEEP && failed == 0)); then
  for target in "${TARGETS[@]}"; do
    "$BUILD/tests/fuzz/${target}_fuzz" -merge=1 -max_len=8192 "$CORPUS/$target" "$BUILD/corpus/$target" \
      >"$BUILD/logs/$target.merge.log" 2>&1 || exit 1
  done
fi
((failed == 0)) || echo "with a finding: ${failures[*]}"
echo "$passed passed, $failed failed"
((failed == 0))
