// Selections: what is accepted is exactly what Encode() writes.

#include "common/format/selection.h"
#include "tests/fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const penstock::ByteSpan input = penstock::FuzzInput(data, size);
  const auto decoded = penstock::Selection::Decode(input);
  if (!decoded.ok()) return 0;
  FUZZ_CHECK(penstock::SameBytes(decoded.value().Encode(), input));
  FUZZ_CHECK(!decoded.value().ToString().empty());
  return 0;
}
