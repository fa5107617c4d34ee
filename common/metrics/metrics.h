// Metrics: counters, gauges and histograms that cost an atomic add, collected by whatever speaks to
// Prometheus.
//
//   metrics::Registry registry;
//   auto& stores = registry.AddCounterFamily("penstock_stores_total", "Items stored, by result.",
//                                            {"result"});
//   metrics::Counter& committed = stores.With({"committed"});   // once, kept
//   committed.Add();                                            // hot path
//
// A registry is a prometheus::Collectable: the daemon hands it to its HTTP exposer; a client
// library, which has none, prints ToText() or exports Collect() by its host's means.
//
// Everything is bounded: a family holds at most max_series series, and label values beyond that are
// counted under "other", so that no client can grow a scrape by inventing labels.
//
// Ownership: a registry owns its metrics; references stay valid as long as it lives.
// Thread safety: every method may be called from any thread. A collection is no snapshot: each
// value is read once, while others move on.

#ifndef PENSTOCK_COMMON_METRICS_METRICS_H_
#define PENSTOCK_COMMON_METRICS_METRICS_H_

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/deadline.h"
#include "common/base/mutex.h"

namespace penstock::metrics {

// Only goes up.
class Counter {
 public:
  void Add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Goes up and down.
class Gauge {
 public:
  void Add(int64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  void Set(int64_t n) { value_.store(n, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

// What a histogram counts: whole numbers in a small unit (nanoseconds, bytes), shown in the unit
// that Prometheus wants (value x scale). `bounds` ascend; one more bucket takes what is above.
struct Buckets {
  std::vector<uint64_t> bounds;
  double scale = 1;

  static Buckets Seconds();  // Durations in nanoseconds: 50 us to 10 s.
  static Buckets Bytes();    // Sizes: 4 KiB to 64 MiB.
};

class Histogram {
 public:
  explicit Histogram(const Buckets& buckets);

  void Observe(uint64_t value);
  void Observe(Duration duration) {
    Observe(static_cast<uint64_t>(std::max<int64_t>(0, duration.count())));
  }
  // Observations at most bounds[i]; i == bounds.size(): above all bounds. Not cumulative.
  uint64_t bucket(size_t i) const { return counts_[i].load(std::memory_order_relaxed); }
  uint64_t sum() const { return sum_.load(std::memory_order_relaxed); }
  const Buckets& buckets() const { return buckets_; }

 private:
  const Buckets buckets_;
  const std::unique_ptr<std::atomic<uint64_t>[]> counts_;
  std::atomic<uint64_t> sum_{0};
};

namespace internal {

// The part of a family that does not depend on what it holds.
class FamilyBase {
 public:
  virtual ~FamilyBase() = default;
  virtual prometheus::MetricFamily Collect() const = 0;
};

}  // namespace internal

template <typename T>
class Family : public internal::FamilyBase {
 public:
  static constexpr size_t kDefaultSeries = 64;
  static constexpr std::string_view kOther = "other";
  static constexpr size_t kMaxLabelBytes = 128;

  // The series with these label values, one for each label in the order of declaration; made on
  // first use. Takes a lock: keep the reference. Values are cut at kMaxLabelBytes, and what is no
  // UTF-8 in them is replaced; past max_series, the series where every value is "other".
  // REQUIRES: as many values as labels.
  T& With(std::initializer_list<std::string_view> values) ABSL_LOCKS_EXCLUDED(mu_);

  prometheus::MetricFamily Collect() const override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class Registry;
  struct Spec {
    std::string name, help;
    std::vector<std::string> labels;
    size_t max_series = kDefaultSeries;
    Buckets buckets;  // Of histograms.
  };
  explicit Family(Spec spec) : spec_(std::move(spec)) {}
  std::unique_ptr<T> Make() const;

  const Spec spec_;
  mutable Mutex mu_;
  std::map<std::vector<std::string>, std::unique_ptr<T>> series_ ABSL_GUARDED_BY(mu_);
};

class Registry final : public prometheus::Collectable {
 public:
  using Labels = std::vector<std::string>;

  Registry() = default;
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // Names are "penstock_" and lower-case words; those of counters end in "_total". A name belongs
  // to one metric. A malformed or repeated name ends the process: that is a bug.
  Counter& AddCounter(std::string name, std::string help);
  Gauge& AddGauge(std::string name, std::string help);
  Histogram& AddHistogram(std::string name, std::string help, Buckets buckets);
  // A gauge that is asked for when somebody collects. `value` must be quick, must not use the
  // registry, and must stay callable as long as the registry lives.
  void AddGaugeFunction(std::string name, std::string help, std::function<double()> value);

  Family<Counter>& AddCounterFamily(std::string name, std::string help, Labels labels,
                                    size_t max_series = Family<Counter>::kDefaultSeries);
  Family<Gauge>& AddGaugeFamily(std::string name, std::string help, Labels labels,
                                size_t max_series = Family<Gauge>::kDefaultSeries);
  Family<Histogram>& AddHistogramFamily(std::string name, std::string help, Labels labels,
                                        Buckets buckets,
                                        size_t max_series = Family<Histogram>::kDefaultSeries);

  // In order of names; families without a series are left out.
  std::vector<prometheus::MetricFamily> Collect() const override ABSL_LOCKS_EXCLUDED(mu_);
  // The Prometheus text format.
  std::string ToText() const;

 private:
  template <typename T>
  Family<T>& Add(typename Family<T>::Spec spec) ABSL_LOCKS_EXCLUDED(mu_);
  void AddBase(const std::string& name, std::unique_ptr<internal::FamilyBase> family)
      ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;
  std::map<std::string, std::unique_ptr<internal::FamilyBase>> families_ ABSL_GUARDED_BY(mu_);
};

extern template class Family<Counter>;
extern template class Family<Gauge>;
extern template class Family<Histogram>;

}  // namespace penstock::metrics

#endif  // PENSTOCK_COMMON_METRICS_METRICS_H_
