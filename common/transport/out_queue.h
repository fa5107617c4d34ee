// OutQueue: bytes of small messages that wait for their socket.

#ifndef PENSTOCK_COMMON_TRANSPORT_OUT_QUEUE_H_
#define PENSTOCK_COMMON_TRANSPORT_OUT_QUEUE_H_

#include <cstddef>
#include <deque>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/transport/frame.h"

namespace penstock {

class OutQueue {
 public:
  // Copies a message to the end.
  void Append(MessageType type, uint64_t request_id, ByteSpan body);

  // The same to the front. REQUIRES: nothing was sent yet.
  void Prepend(MessageType type, uint64_t request_id, ByteSpan body);

  // Sends what the non-blocking socket takes. Returns how many bytes it took. Errors:
  // kDisconnected.
  Result<size_t> SendTo(int fd);

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // With what is sent of the first chunk, whose memory is still there.
  size_t held_bytes() const { return size_ + front_sent_; }

 private:
  // Many small messages share a chunk; a chunk is freed as a whole.
  std::deque<std::vector<std::byte>> chunks_;
  size_t front_sent_ = 0;
  size_t size_ = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_OUT_QUEUE_H_
