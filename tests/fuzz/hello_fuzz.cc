// Bodies of HELLO, HELLO_REPLY, ATTACH and GOODBYE: what a stranger says first. The first byte says
// which parser gets the rest.

#include <vector>

#include "common/transport/hello.h"
#include "tests/fuzz/harness.h"

namespace penstock {
namespace {

void CheckHello(ByteSpan input) {
  const auto parsed = ParseHello(input);
  if (!parsed.ok()) return;
  const Hello& hello = parsed.value();
  FUZZ_CHECK(hello.wires.size() <= kMaxHelloWires);
  FUZZ_CHECK(hello.software.size() <= kMaxHelloString);
  const std::vector<std::byte> encoded = EncodeHello(hello);
  const auto again = ParseHello(encoded);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(SameBytes(EncodeHello(again.value()), encoded));
  const auto version = AgreeOnVersion(hello.version_min, hello.version_max, hello.software);
  if (version.ok()) FUZZ_CHECK(version.value() <= kProtocolVersion);
}

void CheckReply(ByteSpan input) {
  const auto parsed = ParseHelloReply(input);
  if (!parsed.ok()) return;
  const std::vector<std::byte> encoded = EncodeHelloReply(parsed.value());
  const auto again = ParseHelloReply(encoded);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(SameBytes(EncodeHelloReply(again.value()), encoded));
}

void CheckAttach(ByteSpan input) {
  const auto parsed = ParseAttach(input);
  if (!parsed.ok()) return;
  const auto again = ParseAttach(EncodeAttach(parsed.value()));
  FUZZ_CHECK(again.ok() && again.value().stream == parsed.value().stream);
}

void CheckVerdict(ByteSpan input) {
  const auto parsed = ParseVerdict(input);
  if (parsed.ok()) FUZZ_CHECK(parsed.value().message.size() <= input.size());
}

void Check(uint8_t choice, ByteSpan input) {
  switch (choice % 4) {
    case 0:
      return CheckHello(input);
    case 1:
      return CheckReply(input);
    case 2:
      return CheckAttach(input);
    default:
      return CheckVerdict(input);
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) penstock::Check(data[0], penstock::FuzzInput(data + 1, size - 1));
  return 0;
}
