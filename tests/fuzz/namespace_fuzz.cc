// Namespace descriptors: what is accepted is exactly what Encode() writes, so that one namespace
// has one fingerprint.

#include <vector>

#include "common/keys/namespace.h"
#include "tests/fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const penstock::ByteSpan input = penstock::FuzzInput(data, size);
  const auto decoded = penstock::NamespaceDescriptor::Decode(input);
  if (!decoded.ok()) return 0;
  FUZZ_CHECK(decoded.value().Validate().ok());
  FUZZ_CHECK(penstock::SameBytes(decoded.value().Encode(), input));
  FUZZ_CHECK(!decoded.value().ToJson().empty());
  return 0;
}
