// MessageAssembler: turns the bytes of a control stream, however they are cut, into messages.

#ifndef PENSTOCK_COMMON_TRANSPORT_MESSAGE_ASSEMBLER_H_
#define PENSTOCK_COMMON_TRANSPORT_MESSAGE_ASSEMBLER_H_

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/deadline.h"
#include "common/base/status.h"
#include "common/transport/frame.h"

namespace penstock {

class MessageAssembler {
 public:
  // Gets each message; `body` is valid during the call. Returns false to stop: what is left of the
  // input is then lost, which is right for a stream that is being closed.
  using OnMessage = std::function<bool(const FrameHeader& header, ByteSpan body)>;

  explicit MessageAssembler(uint32_t max_body_bytes = FrameHeader::kMaxBodyBytes)
      : max_body_bytes_(max_body_bytes) {}

  // Errors: kCorruptMessage, kTooLarge. The stream is then out of step and must be closed.
  Status Feed(ByteSpan bytes, const OnMessage& on_message);

  // Part of a message is here and the rest is not.
  bool InMessage() const { return header_have_ > 0; }
  // When the first byte of a message came of which the rest has not.
  std::optional<MonotonicTime> incomplete_since() const {
    return InMessage() ? std::optional(since_) : std::nullopt;
  }
  // Memory that the part of a message takes.
  size_t held_bytes() const { return body_.capacity(); }
  // Bytes that complete the header, or, once that is there, the message.
  size_t missing_bytes() const;

 private:
  void Keep(ByteSpan part);

  const uint32_t max_body_bytes_;
  std::array<std::byte, sizeof(FrameHeader)> raw_header_{};
  size_t header_have_ = 0;
  MonotonicTime since_;
  FrameHeader header_;
  // Grows as bytes arrive, so that a peer cannot make us reserve what it never sends.
  std::vector<std::byte> body_;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_MESSAGE_ASSEMBLER_H_
