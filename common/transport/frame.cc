#include "common/transport/frame.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "common/format/checksum.h"

namespace penstock {
namespace {

uint64_t HeaderCheck(const FrameHeader& header) {
  return PlainChecksum({reinterpret_cast<const std::byte*>(&header), offsetof(FrameHeader, check)});
}

}  // namespace

FrameHeader MakeFrameHeader(MessageType type, uint64_t request_id, uint32_t body_bytes) {
  FrameHeader header;
  header.type = static_cast<uint8_t>(type);
  header.request_id = request_id;
  header.body_bytes = body_bytes;
  header.check = HeaderCheck(header);
  return header;
}

Result<FrameHeader> ParseFrameHeader(ByteSpan bytes) {
  FrameHeader header;
  if (bytes.size() < sizeof(header)) {
    return Status(Code::kCorruptMessage,
                  fmt::format("a frame header has {} bytes, not {}", sizeof(header), bytes.size()));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != FrameHeader::kMagic) {
    return Status(Code::kCorruptMessage,
                  fmt::format("not a Penstock frame: it starts with 0x{:08x}, not 0x{:08x}",
                              header.magic, FrameHeader::kMagic));
  }
  if (header.check != HeaderCheck(header)) {
    return Status(Code::kCorruptMessage, "the check of a frame header does not match");
  }
  if (header.body_bytes > FrameHeader::kMaxBodyBytes) {
    return Status(Code::kTooLarge, fmt::format("a message of {} bytes; the limit is {}",
                                               header.body_bytes, FrameHeader::kMaxBodyBytes));
  }
  return header;
}

Result<DataHeader> ParseDataHeader(ByteSpan body) {
  DataHeader header;
  if (body.size() < sizeof(header)) {
    return Status(Code::kCorruptMessage, fmt::format("a data header has at least {} bytes, not {}",
                                                     sizeof(header), body.size()));
  }
  std::memcpy(&header, body.data(), sizeof(header));
  if (header.length > std::numeric_limits<uint64_t>::max() - header.offset) {
    return Status(Code::kCorruptMessage, fmt::format("data at offset {} of length {} overflows",
                                                     header.offset, header.length));
  }
  if (header.status != 0 && header.length != 0) {
    return Status(Code::kCorruptMessage, "data with an error status and a payload");
  }
  return header;
}

}  // namespace penstock
