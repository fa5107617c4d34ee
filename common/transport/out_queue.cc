#include "common/transport/out_queue.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "common/transport/socket.h"

namespace penstock {
namespace {

constexpr size_t kChunkBytes = 16u << 10;
constexpr size_t kChunksPerCall = 16;

void AddMessage(MessageType type, uint64_t request_id, ByteSpan body,
                std::vector<std::byte>& chunk) {
  const FrameHeader header = MakeFrameHeader(type, request_id, static_cast<uint32_t>(body.size()));
  const auto* raw = reinterpret_cast<const std::byte*>(&header);
  chunk.insert(chunk.end(), raw, raw + sizeof(header));
  chunk.insert(chunk.end(), body.begin(), body.end());
}

}  // namespace

void OutQueue::Append(MessageType type, uint64_t request_id, ByteSpan body) {
  const size_t bytes = sizeof(FrameHeader) + body.size();
  if (chunks_.empty() || chunks_.back().size() + bytes > kChunkBytes) chunks_.emplace_back();
  AddMessage(type, request_id, body, chunks_.back());
  size_ += bytes;
}

void OutQueue::Prepend(MessageType type, uint64_t request_id, ByteSpan body) {
  AddMessage(type, request_id, body, chunks_.emplace_front());
  size_ += sizeof(FrameHeader) + body.size();
}

Result<size_t> OutQueue::SendTo(int fd) {
  size_t total = 0;
  while (size_ > 0) {
    std::array<iovec, kChunksPerCall> iov;
    size_t count = 0;
    for (auto chunk = chunks_.begin(); chunk != chunks_.end() && count < iov.size(); ++chunk) {
      const size_t skip = count == 0 ? front_sent_ : 0;
      iov[count++] = {chunk->data() + skip, chunk->size() - skip};
    }
    msghdr message{};
    message.msg_iov = iov.data();
    message.msg_iovlen = count;
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return total;
      return Status(Code::kDisconnected,
                    fmt::format("writing the control stream: {}", ErrnoText(errno)));
    }
    total += static_cast<size_t>(sent);
    size_ -= static_cast<size_t>(sent);
    front_sent_ += static_cast<size_t>(sent);
    while (!chunks_.empty() && front_sent_ >= chunks_.front().size()) {
      front_sent_ -= chunks_.front().size();
      chunks_.pop_front();
    }
  }
  return total;
}

}  // namespace penstock
