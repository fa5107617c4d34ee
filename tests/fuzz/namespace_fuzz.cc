// Namespace descriptors. Encoded: what is accepted is exactly what Encode() writes, so that one
// namespace has one fingerprint. As JSON, which no encoding looks like: what is accepted is valid,
// and is the same namespace when it is written and read again, either way.

#include <string_view>

#include "common/keys/namespace.h"
#include "tests/fuzz/harness.h"

namespace penstock {
namespace {

void CheckEncoded(ByteSpan input) {
  const auto decoded = NamespaceDescriptor::Decode(input);
  if (!decoded.ok()) return;
  FUZZ_CHECK(decoded.value().Validate().ok());
  FUZZ_CHECK(SameBytes(decoded.value().Encode(), input));
  FUZZ_CHECK(!decoded.value().ToJson().empty());
}

void CheckJson(std::string_view text) {
  const auto read = NamespaceDescriptor::FromJson(text);
  if (!read.ok()) {
    FUZZ_CHECK(read.status().code() == Code::kInvalidArgument);
    return;
  }
  const NamespaceDescriptor& ns = read.value();
  FUZZ_CHECK(ns.Validate().ok());
  const auto again = NamespaceDescriptor::FromJson(ns.ToJson(NamespaceDescriptor::Salt::kShow));
  FUZZ_CHECK(again.ok() && again.value() == ns);
  const auto decoded = NamespaceDescriptor::Decode(ns.Encode());
  FUZZ_CHECK(decoded.ok() && decoded.value() == ns);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const penstock::ByteSpan input = penstock::FuzzInput(data, size);
  penstock::CheckEncoded(input);
  penstock::CheckJson(penstock::AsText(input));
  return 0;
}
