#include "common/base/nearest.h"

#include <algorithm>
#include <array>
#include <vector>

namespace penstock {

size_t EditDistance(std::string_view a, std::string_view b) {
  // Three rows of the dynamic program: the one before last is needed for swaps.
  std::array<std::vector<size_t>, 3> rows;
  for (auto& row : rows) row.resize(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) rows[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::vector<size_t>& row = rows[i % 3];
    const std::vector<size_t>& last = rows[(i + 2) % 3];
    const std::vector<size_t>& before_last = rows[(i + 1) % 3];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replace, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return rows[a.size() % 3][b.size()];
}

std::string_view Nearest(std::string_view name, std::span<const std::string_view> candidates) {
  constexpr size_t kLongest = 128;  // A longer name is no typing error; also bounds the work.
  if (name.size() > kLongest) return {};
  std::string_view best;
  size_t best_distance = 0;
  for (const std::string_view candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    const size_t allowed = std::max<size_t>(1, std::max(name.size(), candidate.size()) / 3);
    if (distance > allowed || (!best.empty() && distance >= best_distance)) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

}  // namespace penstock
