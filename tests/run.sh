#!/usr/bin/env bash
# Installs what is missing, builds Penstock, and runs its tests.
#
#   tests/run.sh               what every change must pass: at most 30 minutes on two cores
#   tests/run.sh --all         and the long suites: sanitizers, linters, fuzzers, engines, soak
#   tests/run.sh --minutes N   starts no further suite once N minutes are over; the table says which
#   tests/run.sh --only NAME   one suite (may be given several times); builds what it needs
#   tests/run.sh --list        the suites and what each holds
#   tests/run.sh --no-install  install nothing; fail if something is missing
#
# Logs are in build/logs. The exit status is 0 only if every suite passed. Run it as often as you like:
# what is installed and built already is not done again, and then no network is needed.
set -uo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT" || exit 1
# shellcheck source=deploy/lib/packages.sh
source deploy/lib/packages.sh
# shellcheck source=deploy/lib/build.sh
source deploy/lib/build.sh

LOGS=$ROOT/build/logs
VENV=${DEV_VENV:-$ROOT/.venv}
JOBS=$(nproc)
export DEV_VENV=$VENV DEV_REQUIRE_TOOLS=1
# One compiler cache serves every clone of the tree, wherever it lies.
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1

# name|runs by default or only with --all ("asked": only by name)|what it holds
SUITES=(
  "unit|default|single classes and formats, GoogleTest, a few seconds"
  "integration|default|daemon, client and command together on this machine"
  "faults|default|kills, freezes, garbage, full memory: what bad luck gets"
  "tree|default|the tree's own rules: folders, headers alone, lengths, bans, formatting"
  "python|default|the Python package and the connector without an engine, pytest"
  "asan|all|unit, integration and faults under Address-, Leak- and UndefinedBehaviorSanitizer"
  "tsan|all|the same under ThreadSanitizer; clang++ checks the lock annotations on the way"
  "engines|all|real vLLM with the connector: stored, killed, restarted, compared"
  "fuzz|all|every parser of foreign bytes, libFuzzer, one minute each"
  "tidy|all|clang-tidy over every source file"
  "long|all|what takes minutes: benchmarks side by side, soak with kills"
  "clang|asked|build by clang++ alone (tsan checks the same)"
)

usage() { sed -n '2,13s/^# \{0,1\}//p' "$0"; }
field() { cut -d'|' -f"$2" <<<"$1"; }

# entry NAME: the line of SUITES; fails if there is none.
entry() {
  local suite
  for suite in "${SUITES[@]}"; do
    [[ ${suite%%|*} == "$1" ]] && printf '%s\n' "$suite" && return 0
  done
  return 1
}

list() {
  local suite
  for suite in "${SUITES[@]}"; do
    printf '%-12s %-8s %s\n' "$(field "$suite" 1)" "$(field "$suite" 2)" "$(field "$suite" 3)"
  done
}

# What ran: parallel arrays for the table at the end.
RAN=() RESULTS=() TIMES=() COUNTS=()
PASSED=0 FAILED=0 SKIPPED=0

# record NAME RESULT SECONDS COUNTS
record() {
  RAN+=("$1") RESULTS+=("$2") TIMES+=("$3") COUNTS+=("$4")
}

# count_tests LOG: "passed failed skipped" by the closing lines of ctest and pytest.
count_tests() {
  awk '
    /tests passed, .* tests? failed out of/ { failed += $4; total = $NF; passed += total - $4 }
    /\*\*\*Skipped/ { skipped++; passed-- }
    /^=* ?[0-9]+ (passed|failed|error|skipped)/ && / in [0-9.]+s/ {
      for (i = 1; i < NF; i++) {
        if ($(i + 1) ~ /^passed/) passed += $i
        if ($(i + 1) ~ /^(failed|error)/) failed += $i
        if ($(i + 1) ~ /^skipped/) skipped += $i
      }
    }
    /^[0-9]+ passed, [0-9]+ failed$/ { passed += $1; failed += $3 }
    END { printf "%d %d %d\n", passed, failed, skipped }' "$1"
}

# show_complaints LOG: what the tests that failed said, which the end of a log seldom shows.
show_complaints() {
  local complaint='^[^ ]+:[0-9]+: Failure|: (error|fatal error):|runtime error:|^\[  FAILED  \]|^E   '
  complaint+='|(ERROR|WARNING|SUMMARY): [A-Za-z]+Sanitizer|\*\*\*(Failed|Timeout|Exception)'
  complaint+='|: FAILED \(exit|ERROR: libFuzzer|^finding '
  grep -E -A 6 "$complaint" "$1" | head -n 80 | sed 's/^/      > /' || true
}

# suite NAME LOG COMMAND...: runs and records one suite. A suite that ran no test has failed.
suite() {
  local name=$1 log=$2 began=$SECONDS result=passed passed failed skipped
  shift 2
  run_logged "$log" "$name" "$@" || { result=FAILED && show_complaints "$log"; }
  read -r passed failed skipped < <(count_tests "$log")
  ((passed + failed > 0)) || { result="FAILED (no tests)" failed=1; }
  [[ $result == passed || $failed -gt 0 ]] || failed=1
  PASSED=$((PASSED + passed)) FAILED=$((FAILED + failed)) SKIPPED=$((SKIPPED + skipped))
  record "$name" "$result" $((SECONDS - began)) "$passed passed, $failed failed, $skipped skipped"
}

# failed_step NAME SECONDS: something that suites need did not work.
failed_step() {
  FAILED=$((FAILED + 1))
  record "$1" FAILED "$2" ""
}

declare -A BUILT=()
# build PRESET [TARGET...]: configures and builds once per run; no TARGET means all.
build() {
  local preset=$1 built="$*" began=$SECONDS options=(-DPENSTOCK_BUILD_TESTS=ON)
  shift
  [[ $preset != release ]] || options+=(-DPENSTOCK_BUILD_PYTHON=ON)
  # Several files a unit are quicker to build in full, one a unit after a change: build/ stays as it
  # was configured first.
  [[ $preset != release || -e build/CMakeCache.txt ]] || options+=(-DCMAKE_UNITY_BUILD=ON)
  [[ -z ${BUILT[$preset]:-} ]] || built=$preset
  if [[ -z ${BUILT[$built]:-} ]]; then
    if build_preset "$preset" "$LOGS" "$VENV" "$JOBS" "${options[@]}" -- "$@"; then
      BUILT[$built]=yes
      record "build $preset" built $((SECONDS - began)) ""
    else
      BUILT[$built]=no
      failed_step "build $preset" $((SECONDS - began))
    fi
  fi
  [[ ${BUILT[$built]} == yes ]]
}

# ctest_suite NAME PRESET LABELS JOBS
ctest_suite() {
  build "$2" || return
  local directory=build
  [[ $2 == release ]] || directory=build-$2
  suite "$1" "$LOGS/$1.log" ctest --test-dir "$directory" -L "^($3)\$" -j "$4" \
    --output-on-failure --no-tests=error --output-junit "$LOGS/$1.xml"
}

run_unit() { ctest_suite unit release unit "$JOBS"; }
run_integration() { ctest_suite integration release integration 1; }
run_faults() { ctest_suite faults release faults 1; }
run_tree() { ctest_suite tree release tree "$JOBS"; }
run_asan() { ctest_suite asan asan "unit|integration|faults" "$JOBS"; }
run_tsan() { ctest_suite tsan tsan "unit|integration|faults" "$JOBS"; }
run_long() {
  build release || return
  if ctest --test-dir build -N -L '^(long)$' | grep -q '^Total Tests: 0$'; then
    record long "none yet" 0 ""
    return
  fi
  ctest_suite long release long 1
}
run_clang() { build clang; }
# Nothing is compiled for clang-tidy; of what is generated it needs the headers.
run_tidy() {
  local began=$SECONDS options=(-DPENSTOCK_BUILD_TESTS=OFF -DPENSTOCK_BUILD_PYTHON=ON)
  if build_preset tidy "$LOGS" "$VENV" "$JOBS" "${options[@]}" -- common/api/penstock_admin.grpc.pb.h; then
    suite tidy "$LOGS/tidy.log" python3 tests/tree/tools.py tidy --jobs "$JOBS"
  else
    failed_step "configure tidy" $((SECONDS - began))
  fi
}
run_fuzz() {
  build fuzz || return
  suite fuzz "$LOGS/fuzz.log" tests/fuzz/run.sh --seconds 60 --jobs "$JOBS"
}
run_python() {
  build release || return
  suite python "$LOGS/python.log" "$VENV/bin/python" -m pytest -q -m "not engine" tests/python
}
run_engines() {
  build release penstockd penstock_python || return
  suite engines "$LOGS/engines.log" "$VENV/bin/python" -m pytest -q -m engine tests/engines
}

wanted() {
  local name
  for name in "${CHOSEN[@]}"; do
    [[ $name == "$1" ]] && return 0
  done
  return 1
}

install_missing() {
  local packages=("${PACKAGES_BUILD[@]}" "${PACKAGES_RUNTIME[@]}" "${PACKAGES_TEST[@]}")
  local profiles=(test) name
  for name in tidy tsan fuzz long clang; do
    if wanted "$name"; then
      packages+=("${PACKAGES_LONG[@]}")
      break
    fi
  done
  if wanted engines; then profiles+=(engine); fi
  if ((INSTALL == 0)); then
    mapfile -t missing < <(missing_packages "${packages[@]}")
    ((${#missing[@]} == 0)) || die "missing, and --no-install was given: ${missing[*]}"
    return 0
  fi
  ensure_packages "$LOGS/apt.log" "${packages[@]}" &&
    ensure_venv "$VENV" "$LOGS/pip.log" "${profiles[@]}"
}

summary() {
  local i
  printf '\n%-16s %-18s %12s  %s\n' suite result time tests
  for i in "${!RAN[@]}"; do
    printf '%-16s %-18s %12s  %s\n' "${RAN[i]}" "${RESULTS[i]}" "$(duration "${TIMES[i]}")" "${COUNTS[i]}"
  done
  printf '%-16s %-18s %12s  logs: %s\n\n' total "" "$(duration "$SECONDS")" "$LOGS"
  printf '%d passed, %d failed, %d skipped\n' "$PASSED" "$FAILED" "$SKIPPED"
}

CHOSEN=() ALL=0 INSTALL=1 MINUTES=0
while (($#)); do
  case $1 in
    --all) ALL=1 ;;
    --only)
      [[ -n ${2:-} ]] || die "--only needs the name of a suite; tests/run.sh --list shows them"
      entry "$2" >/dev/null || die "there is no suite '$2'; tests/run.sh --list shows them"
      CHOSEN+=("$2")
      shift
      ;;
    --minutes)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || die "--minutes needs a whole number"
      MINUTES=$2
      shift
      ;;
    --no-install) INSTALL=0 ;;
    --list)
      list
      exit 0
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) die "unknown option '$1'; tests/run.sh --help" ;;
  esac
  shift
done
if ((${#CHOSEN[@]} == 0)); then
  for line in "${SUITES[@]}"; do
    case $(field "$line" 2) in
      default) CHOSEN+=("${line%%|*}") ;;
      all) ((ALL == 0)) || CHOSEN+=("${line%%|*}") ;;
    esac
  done
fi

plan_steps $((${#CHOSEN[@]} + 1))
step "What is missing"
install_missing || die "could not install what is missing; see $LOGS"
for name in "${CHOSEN[@]}"; do
  step "$name: $(field "$(entry "$name")" 3)"
  if ((MINUTES > 0 && SECONDS > MINUTES * 60)); then
    record "$name" "NOT RUN" 0 "$MINUTES minutes are over"
    continue
  fi
  "run_$name"
done
summary
((FAILED == 0))
