#!/usr/bin/env bash
# An object that is compiled for newer instructions must define no symbol that the linker may merge
# with that of another object, or an older machine would run the newer copy.
# Usage: checksum_symbols_test.sh NM OBJECT...
set -euo pipefail
nm=$1
shift
(($# > 0)) || { echo "no objects given" >&2; exit 2; }
bad=0
for object in "$@"; do
  defined=$("$nm" --defined-only "$object")
  grep -q kChecksum <<<"$defined" || { echo "$object: not a checksum kernel" >&2; exit 2; }
  # W, V and u are weak and unique symbols. Sanitizer and debug metadata is local or hidden data.
  if grep -E ' [WVu] ' <<<"$defined" | grep -vE ' (DW\.ref\.|__odr_asan)'; then
    echo "$object: defines mergeable symbols" >&2
    bad=1
  fi
done
exit $bad
