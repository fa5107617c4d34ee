// Latencies of many operations, in bounded memory and to about one percent.

#ifndef PENSTOCK_CLIENT_CLI_BENCH_LATENCY_H_
#define PENSTOCK_CLIENT_CLI_BENCH_LATENCY_H_

#include <array>
#include <bit>
#include <cstdint>

#include "common/base/deadline.h"

namespace penstock::cli {

// Not thread-safe: one a thread, added up at the end.
class Latency {
 public:
  void Add(Duration d) {
    ++buckets_[BucketOf(static_cast<uint64_t>(d.count() < 0 ? 0 : d.count()))];
    ++count_;
  }
  void Add(const Latency& other) {
    for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
  }
  uint64_t count() const { return count_; }
  // The latency, in microseconds, that `fraction` of the operations did not exceed.
  double Micros(double fraction) const {
    const auto rank = static_cast<uint64_t>(fraction * static_cast<double>(count_));
    uint64_t seen = 0;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      seen += buckets_[i];
      if (seen > rank || (seen == count_ && seen > 0)) return UpperNanos(i) / 1000.0;
    }
    return 0;
  }

 private:
  // 64 buckets for each doubling.
  static constexpr size_t kSub = 64;

  static size_t BucketOf(uint64_t nanos) {
    if (nanos < kSub) return nanos;
    const int shift = std::bit_width(nanos) - 7;
    return static_cast<size_t>(shift) * kSub + (nanos >> shift);
  }
  static double UpperNanos(size_t bucket) {
    if (bucket < 2 * kSub) return static_cast<double>(bucket + 1);
    const size_t shift = bucket / kSub - 1;
    return static_cast<double>(uint64_t{kSub + bucket % kSub + 1} << shift);
  }

  std::array<uint64_t, 60 * kSub> buckets_{};
  uint64_t count_ = 0;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLIENT_CLI_BENCH_LATENCY_H_
