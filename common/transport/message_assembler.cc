#include "common/transport/message_assembler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace penstock {
namespace {

// Memory that a stream keeps for its next message.
constexpr size_t kKeptBytes = 16u << 10;

}  // namespace

size_t MessageAssembler::missing_bytes() const {
  if (header_have_ < raw_header_.size()) return raw_header_.size() - header_have_;
  return header_.body_bytes - body_.size();
}

Status MessageAssembler::Feed(ByteSpan bytes, const OnMessage& on_message) {
  while (!bytes.empty()) {
    if (!InMessage()) since_ = MonotonicNow();
    if (header_have_ < raw_header_.size()) {
      const size_t take = std::min(bytes.size(), raw_header_.size() - header_have_);
      std::memcpy(raw_header_.data() + header_have_, bytes.data(), take);
      header_have_ += take;
      bytes = bytes.subspan(take);
      if (header_have_ < raw_header_.size()) return Status::Ok();
      PENSTOCK_ASSIGN_OR_RETURN(header_, ParseFrameHeader(raw_header_));
      if (header_.body_bytes > max_body_bytes_) {
        return Status(Code::kTooLarge, fmt::format("a message of {} bytes; the limit here is {}",
                                                   header_.body_bytes, max_body_bytes_));
      }
    }
    const size_t take = std::min<size_t>(bytes.size(), header_.body_bytes - body_.size());
    ByteSpan body = bytes.first(take);
    bytes = bytes.subspan(take);
    // A body that is here in one piece is not copied.
    if (!body_.empty() || take < header_.body_bytes) {
      Keep(body);
      if (body_.size() < header_.body_bytes) return Status::Ok();
      body = body_;
    }
    const bool go_on = on_message(header_, body);
    header_have_ = 0;
    body_.clear();
    if (body_.capacity() > kKeptBytes) body_ = {};
    if (!go_on) return Status::Ok();
  }
  return Status::Ok();
}

// Twice as much whenever there is no room, but never more than the message will take.
void MessageAssembler::Keep(ByteSpan part) {
  const size_t wanted = body_.size() + part.size();
  if (wanted > body_.capacity()) {
    const size_t ample = std::max(wanted, 2 * body_.capacity());
    body_.reserve(std::min<size_t>(ample, header_.body_bytes));
  }
  body_.insert(body_.end(), part.begin(), part.end());
}

}  // namespace penstock
