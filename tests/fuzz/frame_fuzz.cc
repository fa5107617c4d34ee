// Frame headers and DATA headers: the first bytes of anything that connects to the port.

#include "common/transport/frame.h"
#include "tests/fuzz/harness.h"

namespace penstock {
namespace {

void CheckFrame(ByteSpan input) {
  const auto parsed = ParseFrameHeader(input);
  if (!parsed.ok()) return;
  FUZZ_CHECK(input.size() >= sizeof(FrameHeader));
  FUZZ_CHECK(parsed.value().magic == FrameHeader::kMagic);
  FUZZ_CHECK(parsed.value().body_bytes <= FrameHeader::kMaxBodyBytes);
}

void CheckData(ByteSpan input) {
  const auto parsed = ParseDataHeader(input);
  if (!parsed.ok()) return;
  const DataHeader& data = parsed.value();
  FUZZ_CHECK(data.offset + data.length >= data.offset);
}

// A header whose check is right reaches the checks behind it, which random bytes never do.
void CheckMade(ByteSpan input) {
  ByteReader reader(input);
  const auto type = static_cast<MessageType>(reader.U8());
  const uint64_t request_id = reader.U64();
  const uint32_t body_bytes = reader.U32();
  if (!reader.ok()) return;
  const FrameHeader made = MakeFrameHeader(type, request_id, body_bytes);
  const auto parsed = ParseFrameHeader({reinterpret_cast<const std::byte*>(&made), sizeof(made)});
  FUZZ_CHECK(parsed.ok() == (body_bytes <= FrameHeader::kMaxBodyBytes));
  if (parsed.ok()) FUZZ_CHECK(parsed.value().request_id == request_id);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const penstock::ByteSpan input = penstock::FuzzInput(data, size);
  penstock::CheckFrame(input);
  penstock::CheckData(input);
  penstock::CheckMade(input);
  return 0;
}
