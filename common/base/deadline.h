// Deadline: a moment on the monotonic clock by which a call must be over.
//
// No duration in Penstock comes from the wall clock. On the wire a deadline travels as the time
// that is left, in milliseconds, because two machines share no clock.

#ifndef PENSTOCK_COMMON_BASE_DEADLINE_H_
#define PENSTOCK_COMMON_BASE_DEADLINE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace penstock {

using MonotonicTime = std::chrono::steady_clock::time_point;
using Duration = std::chrono::nanoseconds;

inline MonotonicTime MonotonicNow() { return std::chrono::steady_clock::now(); }

class Deadline {
 public:
  // The longest deadline there is; a larger wish is cut to it, so that nothing waits for ever.
  static constexpr std::chrono::hours kMax{24};

  static Deadline At(MonotonicTime at) { return Deadline(at); }
  static Deadline After(Duration patience) {
    return Deadline(MonotonicNow() + std::clamp<Duration>(patience, Duration::zero(), kMax));
  }

  MonotonicTime at() const { return at_; }
  bool Expired(MonotonicTime now = MonotonicNow()) const { return now >= at_; }
  // What is left, never negative.
  Duration Left(MonotonicTime now = MonotonicNow()) const {
    return std::max<Duration>(at_ - now, Duration::zero());
  }
  // What is left, rounded up, as sent on the wire. 0 means expired.
  uint32_t LeftMillis(MonotonicTime now = MonotonicNow()) const {
    return static_cast<uint32_t>(std::chrono::ceil<std::chrono::milliseconds>(Left(now)).count());
  }

 private:
  explicit Deadline(MonotonicTime at) : at_(at) {}
  MonotonicTime at_;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_BASE_DEADLINE_H_
