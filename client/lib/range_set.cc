#include "client/lib/range_set.h"

#include <algorithm>

namespace penstock {

bool RangeSet::Claim(uint64_t begin, uint64_t end) {
  if (begin == end) return true;
  const auto next =
      std::upper_bound(ranges_.begin(), ranges_.end(), begin,
                       [](uint64_t at, const auto& range) { return at < range.first; });
  const bool has_previous = next != ranges_.begin();
  if (has_previous && std::prev(next)->second > begin) return false;
  if (next != ranges_.end() && next->first < end) return false;
  const bool joins_previous = has_previous && std::prev(next)->second == begin;
  const bool joins_next = next != ranges_.end() && next->first == end;
  if (joins_previous && joins_next) {
    std::prev(next)->second = next->second;
    ranges_.erase(next);
  } else if (joins_previous) {
    std::prev(next)->second = end;
  } else if (joins_next) {
    next->first = begin;
  } else {
    if (ranges_.size() == kMaxRanges) return false;
    ranges_.insert(next, {begin, end});
  }
  return true;
}

}  // namespace penstock
