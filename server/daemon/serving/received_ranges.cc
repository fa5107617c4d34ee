#include "server/daemon/serving/received_ranges.h"

#include <algorithm>

namespace penstock {

bool ReceivedRanges::Claim(uint64_t offset, uint64_t length) {
  if (length == 0 || offset > total_ || length > total_ - offset) return false;
  const uint64_t end = offset + length;
  // The first run that begins behind the new one's begin; the one before it may touch.
  const auto next = std::upper_bound(runs_.begin(), runs_.end(), offset,
                                     [](uint64_t at, const Run& run) { return at < run.begin; });
  if (next != runs_.end() && next->begin < end) return false;
  const bool joins_next = next != runs_.end() && next->begin == end;
  const bool has_previous = next != runs_.begin();
  const auto previous = has_previous ? next - 1 : runs_.end();
  if (has_previous && previous->end > offset) return false;
  const bool joins_previous = has_previous && previous->end == offset;

  if (joins_previous && joins_next) {
    previous->end = next->end;
    runs_.erase(next);
  } else if (joins_previous) {
    previous->end = end;
  } else if (joins_next) {
    next->begin = offset;
  } else {
    if (runs_.size() >= kMaxRuns) return false;
    runs_.insert(next, Run{offset, end});
  }
  claimed_ += length;
  return true;
}

}  // namespace penstock
