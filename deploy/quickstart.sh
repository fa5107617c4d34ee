#!/usr/bin/env bash
# Shows what Penstock does, on this machine, with a real vLLM (its CPU build):
# asks a question about a long text, kills the engine, starts a new one, asks again.
#
#   deploy/quickstart.sh                 everything; under ten minutes from a bare Debian 12
#   deploy/quickstart.sh --model llama   a tiny random model instead of Gemma 3 270M
#   deploy/quickstart.sh --stop          stops penstockd and removes its state
#
#   --state DIR    where penstockd's socket, log and ready file go
#                  (default: $XDG_STATE_HOME/penstock, else ~/.local/state/penstock)
#
# It installs what is missing (Debian packages as root or through sudo, Python packages from PyPI into
# .venv), builds, and runs. Run twice, it only runs: then no network is needed. penstockd is left
# running, on this machine's loopback addresses only, and the commands to play on are printed.
set -uo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT" || exit 1
# shellcheck source=deploy/lib/packages.sh
source deploy/lib/packages.sh
# shellcheck source=deploy/lib/build.sh
source deploy/lib/build.sh

MODEL=gemma STOP=0
STATE=${XDG_STATE_HOME:-$HOME/.local/state}/penstock
VENV=${DEV_VENV:-$ROOT/.venv}
LOGS=$ROOT/build/logs
JOBS=$(nproc)
DAEMON=$ROOT/build/server/daemon/penstockd
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1

usage() { sed -n '2,17s/^# \{0,1\}//p' "$0"; }

while (($#)); do
  case $1 in
    --model) MODEL=${2:-} && shift ;;
    --state) STATE=${2:-} && shift ;;
    --stop) STOP=1 ;;
    -h | --help) usage && exit 0 ;;
    *) die "unknown option '$1'; deploy/quickstart.sh --help" ;;
  esac
  shift
done
[[ $MODEL == gemma || $MODEL == llama ]] || die "--model is gemma or llama, not '$MODEL'"
[[ -n $STATE ]] || die "--state needs a folder"

READY=$STATE/ready.json
SOCKET=$STATE/penstockd.sock

# daemon_pid: the process id of the penstockd of this state folder, if it runs.
daemon_pid() {
  local pid
  pid=$(cat "$STATE/penstockd.pid" 2>/dev/null) || return 1
  [[ $(readlink "/proc/$pid/exe" 2>/dev/null) == */penstockd* ]] || return 1
  printf '%s\n' "$pid"
}

stop_daemon() {
  local pid waited=0
  if pid=$(daemon_pid); then
    kill -TERM "$pid"
    while [[ -e /proc/$pid ]] && ((waited < 200)); do
      sleep 0.1
      waited=$((waited + 1))
    done
    [[ ! -e /proc/$pid ]] || kill -KILL "$pid"
    say "penstockd (process $pid) stopped"
  else
    say "penstockd is not running"
  fi
  rm -f "$STATE/penstockd.pid" "$READY" "$SOCKET"
}

start_daemon() {
  local pid waited=0
  mkdir -p "$STATE"
  if pid=$(daemon_pid) && [[ -e $READY && ! $DAEMON -nt $READY ]]; then
    say "penstockd runs already (process $pid)"
    return 0
  fi
  stop_daemon >/dev/null
  setsid "$DAEMON" --listen=tcp://127.0.0.1:0 "--unix-socket=$SOCKET" --admin.address=127.0.0.1:0 \
    --metrics.address=127.0.0.1:0 "--ready-file=$READY" >>"$STATE/penstockd.log" 2>&1 </dev/null &
  pid=$!
  printf '%s\n' "$pid" >"$STATE/penstockd.pid"
  while [[ ! -e $READY ]]; do
    if [[ ! -e /proc/$pid ]] || ((waited >= 300)); then
      tail -n 15 "$STATE/penstockd.log" | sed 's/^/      | /'
      die "penstockd did not start; its log is $STATE/penstockd.log"
    fi
    sleep 0.1
    waited=$((waited + 1))
  done
  say "penstockd runs (process $pid, log $STATE/penstockd.log)"
}

# python_packages: and then the model, which takes a while to make and needs nothing of Penstock.
python_packages() {
  ensure_venv "$VENV" "$LOGS/pip.log" engine || return
  run_logged "$LOGS/model.log" "model $MODEL" \
    "$VENV/bin/python" tests/engines/models.py "$MODEL"
}

# install: Debian packages, then Python packages and the build side by side, since one waits for the
# network and the other for the processor.
install_and_build() {
  local python_done=0 built=0
  ensure_packages "$LOGS/apt.log" "${PACKAGES_BUILD[@]}" "${PACKAGES_RUNTIME[@]}" ||
    die "could not install the Debian packages"
  ensure_venv "$VENV" "$LOGS/pip.log" || die "could not make a Python environment"
  step "Python packages, the model, and building Penstock"
  python_packages &
  local installer=$!
  # A new build is for watching: without the tests, which tests/run.sh adds, and several sources to a
  # compilation, which saves most of the time.
  local fresh=()
  [[ -e build/CMakeCache.txt ]] || fresh=(-DPENSTOCK_BUILD_TESTS=OFF -DCMAKE_UNITY_BUILD=ON)
  build_preset release "$LOGS" "$VENV" "$JOBS" -DPENSTOCK_BUILD_PYTHON=ON "${fresh[@]}" -- \
    penstockd penstock penstock_python || built=1
  wait "$installer" || python_done=1
  ((built == 0)) || die "the build failed; see $LOGS/build-release.log"
  ((python_done == 0)) || die "could not install the Python packages or make the model; see $LOGS"
}

play_on() {
  local admin metrics
  admin=$(grep -oE '"admin": *"[^"]*"' "$READY" | cut -d'"' -f4)
  metrics=$(grep -oE '"metrics": *"[^"]*"' "$READY" | cut -d'"' -f4)
  cat <<TEXT

penstockd is still running. To play on:
  alias penstock="$ROOT/build/client/cli/penstock --address unix://$SOCKET --admin-address $admin"
  penstock ping
  penstock put license $ROOT/LICENSE
  penstock get license -o copy.txt
  penstock ns
  penstock top
  penstock doctor
  http://$metrics/metrics      its metrics, for Prometheus or a browser
  export PYTHONPATH="$ROOT/build/python"     then "import penstock" works in $VENV/bin/python
  $ROOT/deploy/quickstart.sh           once more (nothing to install or build now)
  $ROOT/deploy/quickstart.sh --stop    stop penstockd and remove its state
TEXT
}

if ((STOP)); then
  stop_daemon
  rm -f "$STATE/penstockd.log"
  rmdir "$STATE" 2>/dev/null
  exit 0
fi

plan_steps 4
if [[ $MODEL == gemma ]]; then
  say "The model is Gemma 3 270M. Its weights are provided by Google under and subject to the Gemma"
  say "Terms of Use found at https://ai.google.dev/gemma/terms (--model llama: a random model)"
fi
step "What is missing on this machine"
install_and_build
step "penstockd"
start_daemon
step "Ask, kill, start again, ask again"
"$VENV/bin/python" deploy/quickstart/demo.py --model "$MODEL" --daemon "unix://$SOCKET" \
  --logs "$LOGS" || die "the demonstration failed; logs: $LOGS and $STATE/penstockd.log"
say "all of this took $(duration "$SECONDS")"
play_on
