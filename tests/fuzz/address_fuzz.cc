// Texts that operators write: addresses, keys, sizes, times. An accepted one writes itself in a
// form that is accepted again and stays as it is.

#include <string>
#include <string_view>

#include "common/base/units.h"
#include "common/keys/digest.h"
#include "common/transport/endpoint.h"
#include "tests/fuzz/harness.h"

namespace penstock {
namespace {

void CheckAddress(std::string_view input) {
  const auto parsed = Address::Parse(input);
  if (!parsed.ok()) return;
  const std::string text = parsed.value().ToString();
  const auto again = Address::Parse(text);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again.value().ToString() == text);
}

void CheckDigest(std::string_view input) {
  const auto parsed = Digest256::FromHex(input);
  FUZZ_CHECK(!parsed.ok() || input.size() == 2 * Digest256::kBytes);
  if (!parsed.ok()) return;
  const auto again = Digest256::FromHex(parsed.value().ToHex());
  FUZZ_CHECK(again.ok() && again.value() == parsed.value());
}

void CheckUnits(std::string_view input) {
  if (const auto bytes = ParseBytes(input); bytes.ok()) {
    const auto again = ParseBytes(FormatBytes(bytes.value()));
    FUZZ_CHECK(again.ok() && again.value() == bytes.value());
  }
  if (const auto duration = ParseDuration(input); duration.ok()) {
    const auto again = ParseDuration(FormatDuration(duration.value()));
    FUZZ_CHECK(again.ok() && again.value() == duration.value());
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = penstock::AsText(penstock::FuzzInput(data, size));
  penstock::CheckAddress(text);
  penstock::CheckDigest(text);
  penstock::CheckUnits(text);
  return 0;
}
