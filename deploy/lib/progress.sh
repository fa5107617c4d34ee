# Progress and logging for the scripts: what is being done, how far it is, how long it took.
# Sourced, never run. Needs bash 5 and nothing else, since a bare system has nothing else.
# shellcheck shell=bash

PROGRESS_TOTAL=0
PROGRESS_DONE=0

# plan_steps N: the next N calls of `step` are numbered [1/N] to [N/N].
plan_steps() {
  PROGRESS_TOTAL=$1
  PROGRESS_DONE=0
}

# step TEXT: announces the next step.
step() {
  PROGRESS_DONE=$((PROGRESS_DONE + 1))
  printf '[%d/%d] %s\n' "$PROGRESS_DONE" "$PROGRESS_TOTAL" "$*"
}

say() { printf '      %s\n' "$*"; }
warn() { printf '      warning: %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# duration SECONDS: "4 s" or "2 min 05 s".
duration() {
  if (($1 < 60)); then
    printf '%d s' "$1"
  else
    printf '%d min %02d s' $(($1 / 60)) $(($1 % 60))
  fi
}

# _tick LOG TEXT: every few seconds (ten, or thirty where nobody watches a terminal) says that TEXT goes on, and the last count that the log shows
# ("[120/340]" of ninja, "12/80 Test" of ctest, "[ 45%]" of pytest).
_tick() {
  local log=$1 text=$2 began=$SECONDS napping=0 count every=30
  [[ ! -t 1 ]] || every=10
  trap 'kill "$napping" 2>/dev/null; exit 0' TERM
  while true; do
    sleep "$every" &
    napping=$!
    wait "$napping"
    count=$(tail -c 4000 "$log" 2>/dev/null | tr '\r' '\n' |
      grep -oE '\[ *[0-9]+/[0-9]+\]|^ *[0-9]+/[0-9]+ Test|\[ *[0-9]+%\]' | tail -n 1)
    count=${count//[][ ]/}
    say "... $text: ${count:+${count/Test/ tests}, }$(duration $((SECONDS - began)))"
  done
}

# run_logged LOG TEXT COMMAND...: runs COMMAND with its output in LOG, shows that it goes on, and
# says how long it took. On failure shows the end of the log. Returns COMMAND's exit status.
run_logged() {
  local log=$1 text=$2 began=$SECONDS ticker rc=0
  shift 2
  mkdir -p "$(dirname "$log")"
  : >"$log"
  _tick "$log" "$text" &
  ticker=$!
  "$@" >"$log" 2>&1 </dev/null || rc=$?
  kill "$ticker" 2>/dev/null
  wait "$ticker" 2>/dev/null || true
  if ((rc == 0)); then
    say "$text: done in $(duration $((SECONDS - began)))"
  else
    say "$text: FAILED (exit $rc) after $(duration $((SECONDS - began))); the end of $log:"
    tail -n "${TAIL_LINES:-30}" "$log" | sed 's/^/      | /'
  fi
  return "$rc"
}

# Children in the background (tickers, a second installation) end with the script.
_interrupted() {
  local children
  mapfile -t children < <(jobs -p)
  ((${#children[@]} == 0)) || kill "${children[@]}" 2>/dev/null
  exit 130
}
trap _interrupted INT TERM
