#include "common/format/verify.h"

#include <fmt/format.h>

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "common/format/checksum.h"

namespace penstock {
namespace {

using Pieces = absl::InlinedVector<iovec, 8>;

// Cuts a scatter list into consecutive runs.
class PieceCursor {
 public:
  explicit PieceCursor(std::span<const iovec> pieces) : rest_(pieces) {}

  // The next `length` bytes. REQUIRES: there are that many.
  Pieces Take(uint64_t length) {
    Pieces taken;
    while (length > 0) {
      const iovec& front = rest_.front();
      const size_t size = std::min<uint64_t>(length, front.iov_len - used_);
      if (size > 0) taken.push_back({static_cast<std::byte*>(front.iov_base) + used_, size});
      length -= size;
      used_ += size;
      if (used_ == front.iov_len) {
        rest_ = rest_.subspan(1);
        used_ = 0;
      }
    }
    return taken;
  }

 private:
  std::span<const iovec> rest_;
  size_t used_ = 0;  // Of rest_.front().
};

uint64_t TotalBytes(std::span<const iovec> pieces) {
  uint64_t total = 0;
  for (const iovec& piece : pieces) total += piece.iov_len;
  return total;
}

Status CheckLength(const ChunkKey& key, uint64_t want, std::span<const iovec> pieces) {
  const uint64_t have = TotalBytes(pieces);
  if (have == want) return Status::Ok();
  return Status(Code::kChecksumMismatch,
                fmt::format("chunk {}: {} bytes, committed {}", key.ToShortHex(), have, want));
}

Status CheckSegment(const ChunkKey& key, const Manifest& manifest, uint32_t index,
                    std::span<const iovec> pieces) {
  const Segment& segment = manifest.segments[index];
  const uint64_t sum = ChunkChecksum(key, pieces);
  if (sum == segment.checksum) return Status::Ok();
  return Status(Code::kChecksumMismatch,
                fmt::format("chunk {}: segment {} of {} ({} bytes): checksum {:016x}, committed "
                            "{:016x}",
                            key.ToShortHex(), index, manifest.segments.size(), segment.stored_bytes,
                            sum, segment.checksum));
}

}  // namespace

Status VerifySegments(const ChunkKey& key, const Manifest& manifest, const Selection& selection,
                      std::span<const iovec> pieces) {
  PENSTOCK_ASSIGN_OR_RETURN(const SelectedSegments selected, SelectSegments(manifest, selection));
  PENSTOCK_RETURN_IF_ERROR(CheckLength(key, SelectedBytes(selected), pieces));
  PieceCursor cursor(pieces);
  for (const SelectedSegment& s : selected) {
    PENSTOCK_RETURN_IF_ERROR(CheckSegment(key, manifest, s.index, cursor.Take(s.length)));
  }
  return Status::Ok();
}

Status VerifySegment(const ChunkKey& key, const Manifest& manifest, uint32_t index,
                     std::span<const iovec> pieces) {
  if (index >= manifest.segments.size()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("segment {} of {}", index, manifest.segments.size()));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckLength(key, manifest.segments[index].stored_bytes, pieces));
  return CheckSegment(key, manifest, index, pieces);
}

}  // namespace penstock
