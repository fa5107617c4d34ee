#include "client/lib/piece_map.h"

#include <algorithm>
#include <utility>

namespace penstock {

PieceMap::PieceMap(std::vector<iovec> pieces) : pieces_(std::move(pieces)) {
  std::erase_if(pieces_, [](const iovec& piece) { return piece.iov_len == 0; });
  for (const iovec& piece : pieces_) total_ += piece.iov_len;
}

void PieceMap::Slice(uint64_t offset, uint64_t length, Pieces& out) {
  if (offset < piece_offset_) piece_ = piece_offset_ = 0;
  while (length > 0) {
    const iovec& piece = pieces_[piece_];
    if (offset >= piece_offset_ + piece.iov_len) {
      piece_offset_ += piece.iov_len;
      ++piece_;
      continue;
    }
    const uint64_t skip = offset - piece_offset_;
    const size_t size = std::min<uint64_t>(length, piece.iov_len - skip);
    out.push_back({static_cast<std::byte*>(piece.iov_base) + skip, size});
    offset += size;
    length -= size;
  }
}

}  // namespace penstock
