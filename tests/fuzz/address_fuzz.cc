// Addresses that operators write. An accepted one writes itself in a form that is accepted again
// and stays as it is.

#include <string>

#include "common/transport/endpoint.h"
#include "tests/fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parsed = penstock::Address::Parse(penstock::AsText(penstock::FuzzInput(data, size)));
  if (!parsed.ok()) return 0;
  const std::string text = parsed.value().ToString();
  const auto again = penstock::Address::Parse(text);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again.value().ToString() == text);
  return 0;
}
