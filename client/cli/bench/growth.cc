#include "client/cli/bench/growth.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace penstock::cli {

void Growth::Sample(double x) {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  uint64_t descriptors = 0;
  std::error_code ignored;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    ++descriptors;
  }
  Sample(x, resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)), descriptors);
}

void Growth::Sample(double x, uint64_t rss_bytes, uint64_t descriptors) {
  points_.push_back({x, static_cast<double>(rss_bytes), static_cast<double>(descriptors)});
}

Growth::Line Growth::Memory() const { return Fit(&Point::rss); }
Growth::Line Growth::Descriptors() const { return Fit(&Point::fds); }

Growth::Line Growth::Fit(double Point::*value) const {
  Line line;
  if (points_.empty()) return line;
  line.first = static_cast<uint64_t>(points_.front().*value);
  line.last = static_cast<uint64_t>(points_.back().*value);
  for (const Point& p : points_) {
    line.most = std::max(line.most, static_cast<uint64_t>(p.*value));
  }
  // The first half is warm-up: caches fill, buffers find their size.
  const size_t begin = points_.size() / 2;
  const auto n = static_cast<double>(points_.size() - begin);
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (size_t i = begin; i < points_.size(); ++i) {
    sx += points_[i].x;
    sy += points_[i].*value;
    sxx += points_[i].x * points_[i].x;
    sxy += points_[i].x * points_[i].*value;
  }
  const double spread = n * sxx - sx * sx;
  if (spread > 0) line.slope = (n * sxy - sx * sy) / spread;
  return line;
}

}  // namespace penstock::cli
