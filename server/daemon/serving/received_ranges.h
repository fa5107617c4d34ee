// ReceivedRanges: which bytes of one item have been promised to arriving data, so that each byte is
// counted exactly once however the frames are cut and ordered.
//
// Thread safety: none.

#ifndef PENSTOCK_SERVER_DAEMON_SERVING_RECEIVED_RANGES_H_
#define PENSTOCK_SERVER_DAEMON_SERVING_RECEIVED_RANGES_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"

namespace penstock {

class ReceivedRanges {
 public:
  // Frames of one item come nearly in order; a sender that leaves more gaps than this at a time is
  // refused, so that the bookkeeping stays bounded.
  static constexpr size_t kMaxRuns = 1024;

  explicit ReceivedRanges(uint64_t total_bytes) : total_(total_bytes) {}

  // Takes [offset, offset + length). False, and nothing taken, when the range is empty, reaches
  // beyond the total, touches a byte that was taken before, or leaves more than kMaxRuns runs.
  bool Claim(uint64_t offset, uint64_t length);

  uint64_t claimed() const { return claimed_; }
  uint64_t total() const { return total_; }

 private:
  struct Run {
    uint64_t begin, end;
  };
  uint64_t total_;
  uint64_t claimed_ = 0;
  // Sorted, disjoint and not adjacent.
  absl::InlinedVector<Run, 2> runs_;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_SERVING_RECEIVED_RANGES_H_
