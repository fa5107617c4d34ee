// What a test needs to know of the sanitizer that it was built with: the one place for it.

#ifndef PENSTOCK_TESTS_SANITIZERS_SANITIZERS_H_
#define PENSTOCK_TESTS_SANITIZERS_SANITIZERS_H_

#include <cstdint>

namespace penstock {

#if defined(__has_feature)
#define PENSTOCK_HAS_FEATURE(feature) __has_feature(feature)
#else
#define PENSTOCK_HAS_FEATURE(feature) 0
#endif

// Sanitizers keep freed memory, reserve address space, and slow everything down.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    PENSTOCK_HAS_FEATURE(address_sanitizer) || PENSTOCK_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

#undef PENSTOCK_HAS_FEATURE

// Of a loop that repeats the same until a rare order of events has come: fewer turns where each
// costs many times as much.
constexpr uint64_t Turns(uint64_t turns) { return kSanitized ? (turns + 3) / 4 : turns; }

}  // namespace penstock

#endif  // PENSTOCK_TESTS_SANITIZERS_SANITIZERS_H_
