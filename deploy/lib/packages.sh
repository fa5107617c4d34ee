# What Penstock needs from Debian 12 and from PyPI, listed once, and how to install what is missing.
# Sourced, never run. A bare system has bash, coreutils and apt: nothing else is assumed.
# shellcheck shell=bash disable=SC2034

PACKAGES_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=deploy/lib/progress.sh
source "$PACKAGES_DIR/progress.sh"

# To compile penstockd, the client library, the command and the Python modules.
PACKAGES_BUILD=(
  g++ cmake ninja-build ccache pkg-config
  libabsl-dev libfmt-dev libspdlog-dev libssl-dev libxxhash-dev libzstd-dev
  libyaml-cpp-dev libcli11-dev nlohmann-json3-dev
  libucx-dev libibverbs-dev librdmacm-dev libnuma-dev
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  prometheus-cpp-dev
  python3 python3-dev python3-venv pybind11-dev
)
# To run what was compiled, beside the libraries that the list above brings along.
PACKAGES_RUNTIME=(ca-certificates procps)
# To compile and run the tests.
PACKAGES_TEST=(
  libgtest-dev libgmock-dev libbenchmark-dev
  clang-format-14 shellcheck
)
# For the long suites: the second compiler with its sanitizers, the linters, and the programs that
# the benchmarks compare with.
PACKAGES_LONG=(
  clang clang-14 clang-tidy-14 clang-tools-14 llvm-14 libclang-rt-14-dev
  redis-server redis-tools iperf3 ucx-utils
)

# as_root COMMAND...: as root or through sudo.
as_root() {
  if ((EUID == 0)); then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "these packages are missing and only root can install them; run as root: $*"
  fi
}

# missing_packages PACKAGE...: those that are not installed, one a line. Asks only dpkg.
missing_packages() {
  local name status
  declare -A here=()
  while read -r name status; do
    [[ $status == installed ]] && here[${name%%:*}]=1
  done < <(dpkg-query -W -f '${Package} ${db:Status-Status}\n' 2>/dev/null)
  for name in "$@"; do
    [[ -n ${here[$name]:-} ]] || printf '%s\n' "$name"
  done
}

# ensure_packages LOG PACKAGE...: installs what is missing. Touches no network if nothing is.
ensure_packages() {
  local log=$1 missing
  shift
  mapfile -t missing < <(missing_packages "$@")
  if ((${#missing[@]} == 0)); then
    say "all $# Debian packages are there"
    return 0
  fi
  command -v apt-get >/dev/null ||
    die "this needs Debian 12 (or a relative with apt-get); missing: ${missing[*]}"
  say "installing ${#missing[@]} of $# Debian packages: ${missing[*]}"
  run_logged "$log.update" "apt-get update" as_root apt-get update -q || return
  run_logged "$log" "apt-get install" as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${missing[@]}" || return
  mapfile -t missing < <(missing_packages "${missing[@]}")
  ((${#missing[@]} == 0)) || die "apt-get finished, yet these are missing: ${missing[*]}"
}

# ensure_venv DIR LOG PROFILE...: a Python environment in DIR with what deploy/lib/python/PROFILE.txt
# of each PROFILE lists. A profile that was installed from the same list is not looked at again, so
# this works offline once all is there. Packages come from PyPI through uv.
ensure_venv() {
  local dir=$1 log=$2 profile list stamp overrides=()
  shift 2
  if [[ ! -x $dir/bin/python ]]; then
    # Debian's own interpreter, whose headers python3-dev brings, before any other on PATH.
    local python=/usr/bin/python3
    [[ -x $python ]] || python=python3
    run_logged "$log.venv" "Python environment $dir" "$python" -m venv "$dir" || return
  fi
  if [[ ! -x $dir/bin/uv ]]; then
    run_logged "$log.uv" "uv, from PyPI" \
      "$dir/bin/python" -m pip install -q --disable-pip-version-check uv || return
  fi
  for profile in "$@"; do
    list=$PACKAGES_DIR/python/$profile.txt
    stamp=$dir/.installed-$profile
    if cmp -s "$list" "$stamp"; then
      say "Python packages of profile $profile are there"
      continue
    fi
    overrides=()
    [[ -e $PACKAGES_DIR/python/$profile.overrides.txt ]] &&
      overrides=(--override "$PACKAGES_DIR/python/$profile.overrides.txt")
    run_logged "$log.$profile" "Python packages of profile $profile, from PyPI" \
      "$dir/bin/uv" pip install --python "$dir/bin/python" -r "$list" "${overrides[@]}" || return
    cp "$list" "$stamp"
  done
}
