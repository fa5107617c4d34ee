// PieceMap: a value that lies in several pieces of memory, addressed as one run of bytes.

#ifndef PENSTOCK_CLIENT_LIB_PIECE_MAP_H_
#define PENSTOCK_CLIENT_LIB_PIECE_MAP_H_

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "common/transport/session.h"

namespace penstock {

class PieceMap {
 public:
  PieceMap() = default;
  // Empty pieces are dropped. REQUIRES: the lengths add up to less than 2^63.
  explicit PieceMap(std::vector<iovec> pieces);

  uint64_t total() const { return total_; }
  std::span<const iovec> pieces() const { return pieces_; }
  // Appends where bytes [offset, offset + length) lie. REQUIRES: offset + length <= total().
  // Cheap for calls that follow one another.
  void Slice(uint64_t offset, uint64_t length, Pieces& out);

 private:
  std::vector<iovec> pieces_;
  uint64_t total_ = 0;
  // Where the last call ended: piece, and the offset of its first byte.
  size_t piece_ = 0;
  uint64_t piece_offset_ = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_CLIENT_LIB_PIECE_MAP_H_
