// Nearest: what somebody probably meant by a name that is not known.

#ifndef PENSTOCK_COMMON_BASE_NEAREST_H_
#define PENSTOCK_COMMON_BASE_NEAREST_H_

#include <cstddef>
#include <span>
#include <string_view>

namespace penstock {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
size_t EditDistance(std::string_view a, std::string_view b);

// The candidate with the smallest distance, the first of equals; empty when every candidate is
// further away than a third of the longer name (at least 1), because a far guess misleads.
std::string_view Nearest(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace penstock

#endif  // PENSTOCK_COMMON_BASE_NEAREST_H_
