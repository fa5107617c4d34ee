// LongestPrefix: how much of a prompt is stored, for models with several KV groups.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_PREFIX_PLAN_H_
#define PENSTOCK_SERVER_DAEMON_STORE_PREFIX_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// The first chunk that a group with `window` (0: full attention) needs of a prefix of `n` chunks.
inline uint32_t FirstNeeded(uint32_t n, uint32_t window) {
  return window == 0 || window >= n ? 0 : n - window;
}

// The largest n <= count such that for every group g the chunks [FirstNeeded(n, windows[g]), n) are
// there. `is_there(g, i)` says whether chunk i of group g is; it is asked at most once for each
// (g, i), in full groups only up to the first chunk that is missing, and in sliding groups no
// further back than the answer needs.
template <typename IsThere>
uint32_t LongestPrefix(std::span<const uint32_t> windows, uint32_t count, IsThere&& is_there) {
  uint32_t n = count;
  for (size_t g = 0; g < windows.size(); ++g) {
    if (windows[g] != 0) continue;
    uint32_t i = 0;
    while (i < n && is_there(g, i)) ++i;
    n = i;
  }
  // known[g]: the chunks [known[g], n) of group g are there. A missing chunk at i rules out every
  // longer prefix, whose windows would all contain it or lie beyond what was ruled out before.
  std::vector<uint32_t> known(windows.size(), n);
  for (bool settled = false; !settled;) {
    settled = true;
    for (size_t g = 0; g < windows.size(); ++g) {
      if (windows[g] == 0) continue;
      known[g] = std::min(known[g], n);
      while (known[g] > FirstNeeded(n, windows[g])) {
        if (is_there(g, --known[g])) continue;
        n = known[g];
        settled = false;
      }
    }
  }
  return n;
}

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_PREFIX_PLAN_H_
