// Walking over scattered memory.

#ifndef PENSTOCK_COMMON_TRANSPORT_PIECES_H_
#define PENSTOCK_COMMON_TRANSPORT_PIECES_H_

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/transport/session.h"

namespace penstock {

// Bytes of all pieces together; nothing when the sum overflows.
inline std::optional<uint64_t> TotalBytes(std::span<const iovec> pieces) {
  uint64_t total = 0;
  for (const iovec& piece : pieces) {
    if (__builtin_add_overflow(total, uint64_t{piece.iov_len}, &total)) return std::nullopt;
  }
  return total;
}

// A place in a list of pieces. The list is the caller's and must outlive the cursor.
class PieceCursor {
 public:
  PieceCursor() = default;
  explicit PieceCursor(std::span<const iovec> pieces) : pieces_(pieces) {}

  // Moves on by `bytes`. REQUIRES: so many are left.
  void Skip(uint64_t bytes) {
    while (bytes > 0) {
      const uint64_t here = pieces_[index_].iov_len - offset_;
      if (bytes < here) {
        offset_ += bytes;
        return;
      }
      bytes -= here;
      ++index_;
      offset_ = 0;
    }
  }

  // Describes the next `bytes`, or as many as fit into `out`, without moving. Returns how many
  // entries of `out` are used and sets `bytes` to what they describe.
  size_t Peek(uint64_t& bytes, std::span<iovec> out) const {
    uint64_t left = bytes;
    size_t used = 0;
    size_t offset = offset_;
    for (size_t i = index_; left > 0 && used < out.size() && i < pieces_.size(); ++i) {
      const size_t take = std::min<uint64_t>(left, pieces_[i].iov_len - offset);
      if (take > 0) out[used++] = {static_cast<char*>(pieces_[i].iov_base) + offset, take};
      left -= take;
      offset = 0;
    }
    bytes -= left;
    return used;
  }

 private:
  std::span<const iovec> pieces_;
  size_t index_ = 0;
  size_t offset_ = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_PIECES_H_
