// Frame headers and DATA headers, the first bytes of anything that connects to the port, the stream
// of messages that is made of them, and the references of the local wire.

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/transport/frame.h"
#include "common/transport/message_assembler.h"
#include "common/transport/references.h"
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

// Entries small enough to add up to their payload now and then.
void CheckReferences(ByteSpan input) {
  ByteReader reader(input);
  const uint64_t payload_bytes = reader.U16();
  std::vector<Reference> made;
  while (reader.remaining() >= 10 && made.size() < 70) {
    made.push_back({.address = reader.U64(), .length = reader.U16()});
  }
  const ByteSpan raw(reinterpret_cast<const std::byte*>(made.data()),
                     made.size() * sizeof(Reference));
  for (const ByteSpan bytes : {raw, reader.Take(reader.remaining()), input}) {
    const auto parsed = ParseReferences(bytes, payload_bytes);
    if (!parsed.ok()) continue;
    FUZZ_CHECK(!parsed->empty() && parsed->size() <= kMaxReferences);
    uint64_t sum = 0;
    for (const Reference& one : *parsed) {
      FUZZ_CHECK(one.address + one.length >= one.address);
      sum += one.length;
    }
    FUZZ_CHECK(sum == payload_bytes);
  }
}

constexpr uint32_t kMaxBodyBytes = 512;  // Small, for many runs a second.

struct Assembled {
  Code end = Code::kOk;
  std::vector<uint64_t> request_ids;
  std::vector<std::byte> bodies;

  friend bool operator==(const Assembled&, const Assembled&) = default;
};

// Feeds `stream` in pieces of `shortest` bytes and more.
Assembled Assemble(ByteSpan stream, size_t shortest) {
  Assembled out;
  MessageAssembler assembler(kMaxBodyBytes);
  const auto take = [&](const FrameHeader& header, ByteSpan body) {
    FUZZ_CHECK(body.size() == header.body_bytes && body.size() <= kMaxBodyBytes);
    out.request_ids.push_back(header.request_id);
    out.bodies.insert(out.bodies.end(), body.begin(), body.end());
    return true;
  };
  for (size_t at = 0, turn = 0; at < stream.size() && out.end == Code::kOk; ++turn) {
    const size_t piece = std::min(shortest + turn % 3, stream.size() - at);
    out.end = assembler.Feed(stream.subspan(at, piece), take).code();
    at += piece;
  }
  return out;
}

// However a stream is cut, the same messages come out of it. Headers are made right, for random
// ones do not pass their check; some are too large or out of step.
void CheckStream(ByteSpan input) {
  std::vector<std::byte> stream;
  ByteReader reader(input);
  while (reader.remaining() >= 3 && stream.size() < 8 * kMaxBodyBytes) {
    const uint8_t type = reader.U8();
    const uint16_t body_bytes = reader.U16() % (kMaxBodyBytes + 50);
    if (type % 16 == 15) stream.push_back(std::byte{type});
    const FrameHeader header =
        MakeFrameHeader(static_cast<MessageType>(type), stream.size(), body_bytes);
    stream.resize(stream.size() + sizeof(header) + body_bytes, std::byte{type});
    std::memcpy(stream.data() + stream.size() - sizeof(header) - body_bytes, &header,
                sizeof(header));
  }
  const ByteSpan rest = reader.Take(reader.remaining());
  stream.insert(stream.end(), rest.begin(), rest.end());
  const Assembled whole = Assemble(stream, stream.size() + 1);
  FUZZ_CHECK(Assemble(stream, 1) == whole);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const penstock::ByteSpan input = penstock::FuzzInput(data, size);
  penstock::CheckFrame(input);
  penstock::CheckData(input);
  penstock::CheckMade(input);
  penstock::CheckReferences(input);
  penstock::CheckStream(input);
  return 0;
}
