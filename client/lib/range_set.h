// RangeSet: the ranges of a value that have been claimed, so that each byte is taken once.

#ifndef PENSTOCK_CLIENT_LIB_RANGE_SET_H_
#define PENSTOCK_CLIENT_LIB_RANGE_SET_H_

#include <cstdint>
#include <utility>

#include "absl/container/inlined_vector.h"

namespace penstock {

// Bounded: more than kMaxRanges separate ranges are refused. Bytes that come in order make one.
class RangeSet {
 public:
  static constexpr size_t kMaxRanges = 256;

  // False, and no change, when part of [begin, end) is there already, or it makes too many ranges.
  // REQUIRES: begin <= end.
  bool Claim(uint64_t begin, uint64_t end);

  // The end of the last range; 0 when there is none.
  uint64_t end() const { return ranges_.empty() ? 0 : ranges_.back().second; }
  // The end of the range that begins at 0; 0 when there is none.
  uint64_t prefix() const {
    return ranges_.empty() || ranges_.front().first != 0 ? 0 : ranges_.front().second;
  }

 private:
  // Sorted, apart from one another, none empty.
  absl::InlinedVector<std::pair<uint64_t, uint64_t>, 2> ranges_;
};

}  // namespace penstock

#endif  // PENSTOCK_CLIENT_LIB_RANGE_SET_H_
