# Configuring and building, shared by tests/run.sh and deploy/quickstart.sh.
# Sourced after packages.sh, never run.
# shellcheck shell=bash

# build_preset PRESET LOGS VENV JOBS CONFIGURE-OPTIONS -- TARGET...: no TARGET means all. The Python
# modules are built for the interpreter of VENV, which will load them.
build_preset() {
  local preset=$1 logs=$2 venv=$3 jobs=$4 options=() targets=()
  shift 4
  while (($#)) && [[ $1 != -- ]]; do
    options+=("$1")
    shift
  done
  shift || true
  (($# == 0)) || targets=(--target "$@")
  if [[ -x $venv/bin/python ]]; then
    options+=("-DPython_EXECUTABLE=$venv/bin/python" "-DPython3_EXECUTABLE=$venv/bin/python")
  fi
  run_logged "$logs/configure-$preset.log" "configure $preset" \
    cmake --preset "$preset" "${options[@]}" || return
  run_logged "$logs/build-$preset.log" "build $preset" \
    cmake --build --preset "$preset" -j "$jobs" "${targets[@]}"
}
