// Frames: the unit on every stream. Normative text: docs/formats/wire.md, version 1.
//
//   FrameHeader (32 bytes) | body (body_bytes) | payload (only DATA: DataHeader.length bytes)
//
// A body is a message of common/protocol; for DATA it is one DataHeader. Everything is
// little-endian. A receiver drops the connection on a header that does not check.

#ifndef PENSTOCK_COMMON_TRANSPORT_FRAME_H_
#define PENSTOCK_COMMON_TRANSPORT_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace penstock {

// The protocol version of this build, and the oldest it still speaks. A session uses the smaller
// of the two sides' newest versions, if neither side finds it too old.
inline constexpr uint16_t kProtocolVersion = 1;
inline constexpr uint16_t kOldestProtocolVersion = 1;

// Numbers are part of the wire format: append, never renumber.
enum class MessageType : uint8_t {
  // Session.
  kHello = 1,
  kHelloReply = 2,
  kAttach = 3,
  kAttachReply = 4,
  kPing = 5,
  kPong = 6,
  kGoodbye = 7,
  kData = 8,
  // On the data stream of the local wire: data that lies in memory which the receiver reads by
  // itself, the answer to that, and what the two sides tell of their memory.
  kReference = 9,
  kTaken = 10,
  kMemory = 11,
  // Requests of a client. Each is answered by exactly one kReply with the same request id.
  kOpenNamespace = 16,
  kMatch = 17,
  kFetch = 18,
  kStore = 19,
  kTouch = 20,
  kPin = 21,
  kDrop = 22,
  kRelease = 23,
  kCancel = 24,
  kStat = 25,
  kHint = 26,
  kPull = 27,
  kPush = 28,  // Reserved: answered with kUnimplemented.
  // Answers of a daemon.
  kReply = 64,
  kGrant = 65,
};

struct FrameHeader {
  static constexpr uint32_t kMagic = 0x314b4e50;  // "PNK1"
  static constexpr uint32_t kMaxBodyBytes = 8u << 20;

  uint32_t magic = kMagic;
  uint16_t version = kProtocolVersion;
  uint8_t type = 0;   // MessageType.
  uint8_t flags = 0;  // Zero until a version gives it a meaning; ignored by receivers.
  uint32_t body_bytes = 0;
  uint32_t reserved = 0;  // Zero when sent, ignored when received.
  uint64_t request_id = 0;
  uint64_t check = 0;  // PlainChecksum() of the 24 bytes before it.
};
static_assert(sizeof(FrameHeader) == 32 && std::is_trivially_copyable_v<FrameHeader>);
static_assert(std::has_unique_object_representations_v<FrameHeader>);
static_assert(offsetof(FrameHeader, check) == 24);

// Body of a DATA frame: `length` payload bytes are bytes [offset, offset + length) of item `item`
// of request FrameHeader::request_id. `status` other than kOk: the item failed, and length is 0.
struct DataHeader {
  uint32_t item = 0;
  uint16_t status = 0;
  uint16_t reserved = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};
static_assert(sizeof(DataHeader) == 24 && std::is_trivially_copyable_v<DataHeader>);
static_assert(std::has_unique_object_representations_v<DataHeader>);

// Makes a header with its check filled in.
FrameHeader MakeFrameHeader(MessageType type, uint64_t request_id, uint32_t body_bytes);
// Checks magic, check and body size; the version and the type are the caller's to judge.
// Errors: kCorruptMessage, kTooLarge.
Result<FrameHeader> ParseFrameHeader(ByteSpan bytes);
// Checks that offset + length does not overflow. Errors: kCorruptMessage.
Result<DataHeader> ParseDataHeader(ByteSpan body);

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_FRAME_H_
