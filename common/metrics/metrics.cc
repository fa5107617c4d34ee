#include "common/metrics/metrics.h"

#include <fmt/format.h>
#include <prometheus/text_serializer.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <type_traits>

#include "common/base/utf8.h"

namespace penstock::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricType;

[[noreturn]] void Bug(std::string_view what, std::string_view name) {
  fmt::print(stderr, "metrics: {} \"{}\"\n", what, name);
  std::abort();
}

bool IsWord(std::string_view text) {
  return !text.empty() && text.front() >= 'a' && text.front() <= 'z' &&
         std::ranges::all_of(text, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

std::string CleanLabel(std::string_view value, size_t max_bytes) {
  std::string clean;
  while (!value.empty() && clean.size() < max_bytes) {
    const size_t length = Utf8Length(value);
    if (clean.size() + std::max<size_t>(1, length) > max_bytes) break;
    clean += length > 0 ? value.substr(0, length) : "?";
    value.remove_prefix(std::max<size_t>(1, length));
  }
  return clean;
}

void Export(const Counter& counter, ClientMetric& out) {
  out.counter.value = static_cast<double>(counter.value());
}
void Export(const Gauge& gauge, ClientMetric& out) {
  out.gauge.value = static_cast<double>(gauge.value());
}
void Export(const Histogram& histogram, ClientMetric& out) {
  const Buckets& buckets = histogram.buckets();
  uint64_t total = 0;
  for (size_t i = 0; i <= buckets.bounds.size(); ++i) {
    total += histogram.bucket(i);
    const bool last = i == buckets.bounds.size();
    out.histogram.bucket.push_back(
        {total, last ? std::numeric_limits<double>::infinity()
                     : static_cast<double>(buckets.bounds[i]) * buckets.scale});
  }
  // The count is that of the buckets, so that both agree whatever is observed meanwhile.
  out.histogram.sample_count = total;
  out.histogram.sample_sum = static_cast<double>(histogram.sum()) * buckets.scale;
}

template <typename T>
constexpr MetricType TypeOf() {
  if constexpr (std::is_same_v<T, Counter>) return MetricType::Counter;
  if constexpr (std::is_same_v<T, Gauge>) return MetricType::Gauge;
  return MetricType::Histogram;
}

class GaugeFunction : public internal::FamilyBase {
 public:
  GaugeFunction(std::string name, std::string help, std::function<double()> value)
      : name_(std::move(name)), help_(std::move(help)), value_(std::move(value)) {}

  prometheus::MetricFamily Collect() const override {
    ClientMetric metric;
    metric.gauge.value = value_();
    return {name_, help_, MetricType::Gauge, {std::move(metric)}};
  }

 private:
  const std::string name_, help_;
  const std::function<double()> value_;
};

}  // namespace

Buckets Buckets::Seconds() {
  constexpr uint64_t kUs = 1000, kMs = 1000 * kUs, kS = 1000 * kMs;
  return {{50 * kUs, 100 * kUs, 250 * kUs, 500 * kUs, kMs, 2 * kMs, 5 * kMs, 10 * kMs, 25 * kMs,
           50 * kMs, 100 * kMs, 250 * kMs, kS, 10 * kS},
          1e-9};
}

Buckets Buckets::Bytes() {
  constexpr uint64_t kKi = 1024, kMi = 1024 * kKi;
  return {{4 * kKi, 16 * kKi, 64 * kKi, 256 * kKi, kMi, 4 * kMi, 16 * kMi, 64 * kMi}, 1};
}

Histogram::Histogram(const Buckets& buckets)
    : buckets_(buckets), counts_(new std::atomic<uint64_t>[buckets.bounds.size() + 1]()) {}

void Histogram::Observe(uint64_t value) {
  const auto bound = std::ranges::lower_bound(buckets_.bounds, value);
  counts_[static_cast<size_t>(bound - buckets_.bounds.begin())].fetch_add(
      1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

template <typename T>
std::unique_ptr<T> Family<T>::Make() const {
  if constexpr (std::is_same_v<T, Histogram>) {
    return std::make_unique<T>(spec_.buckets);
  } else {
    return std::make_unique<T>();
  }
}

template <typename T>
T& Family<T>::With(std::initializer_list<std::string_view> values) {
  if (values.size() != spec_.labels.size()) Bug("wrong number of label values for", spec_.name);
  std::vector<std::string> key;
  for (const std::string_view value : values) key.push_back(CleanLabel(value, kMaxLabelBytes));
  MutexLock lock(mu_);
  auto found = series_.find(key);
  if (found == series_.end()) {
    if (series_.size() >= spec_.max_series) key.assign(values.size(), std::string(kOther));
    found = series_.try_emplace(std::move(key)).first;
    if (!found->second) found->second = Make();
  }
  return *found->second;
}

template <typename T>
prometheus::MetricFamily Family<T>::Collect() const {
  prometheus::MetricFamily family{spec_.name, spec_.help, TypeOf<T>(), {}};
  MutexLock lock(mu_);
  for (const auto& [values, metric] : series_) {
    ClientMetric out;
    for (size_t i = 0; i < values.size(); ++i) out.label.push_back({spec_.labels[i], values[i]});
    Export(*metric, out);
    family.metric.push_back(std::move(out));
  }
  return family;
}

template class Family<Counter>;
template class Family<Gauge>;
template class Family<Histogram>;

void Registry::AddBase(const std::string& name, std::unique_ptr<internal::FamilyBase> family) {
  if (!name.starts_with("penstock_") || !IsWord(name)) Bug("malformed name", name);
  MutexLock lock(mu_);
  if (!families_.emplace(name, std::move(family)).second) Bug("name is taken:", name);
}

template <typename T>
Family<T>& Registry::Add(typename Family<T>::Spec spec) {
  const std::string name = spec.name;
  if (name.ends_with("_total") != std::is_same_v<T, Counter>) {
    Bug("counters, and only they, end in _total:", name);
  }
  if (spec.help.empty() || spec.max_series == 0) Bug("no help or no room for series:", name);
  for (const std::string& label : spec.labels) {
    if (!IsWord(label) || label == "le") Bug("malformed label of", name);
  }
  if constexpr (std::is_same_v<T, Histogram>) {
    const auto& bounds = spec.buckets.bounds;
    if (std::ranges::adjacent_find(bounds, std::greater_equal<>()) != bounds.end()) {
      Bug("bounds do not ascend:", name);
    }
  }
  std::unique_ptr<Family<T>> family(new Family<T>(std::move(spec)));
  Family<T>& reference = *family;
  AddBase(name, std::move(family));
  return reference;
}

Counter& Registry::AddCounter(std::string name, std::string help) {
  return AddCounterFamily(std::move(name), std::move(help), {}, 1).With({});
}
Gauge& Registry::AddGauge(std::string name, std::string help) {
  return AddGaugeFamily(std::move(name), std::move(help), {}, 1).With({});
}
Histogram& Registry::AddHistogram(std::string name, std::string help, Buckets buckets) {
  return AddHistogramFamily(std::move(name), std::move(help), {}, std::move(buckets), 1).With({});
}

void Registry::AddGaugeFunction(std::string name, std::string help, std::function<double()> value) {
  if (name.ends_with("_total") || help.empty()) Bug("malformed gauge", name);
  const std::string key = name;
  AddBase(key, std::make_unique<GaugeFunction>(std::move(name), std::move(help), std::move(value)));
}

Family<Counter>& Registry::AddCounterFamily(std::string name, std::string help, Labels labels,
                                            size_t max_series) {
  return Add<Counter>({std::move(name), std::move(help), std::move(labels), max_series, {}});
}
Family<Gauge>& Registry::AddGaugeFamily(std::string name, std::string help, Labels labels,
                                        size_t max_series) {
  return Add<Gauge>({std::move(name), std::move(help), std::move(labels), max_series, {}});
}
Family<Histogram>& Registry::AddHistogramFamily(std::string name, std::string help, Labels labels,
                                                Buckets buckets, size_t max_series) {
  return Add<Histogram>(
      {std::move(name), std::move(help), std::move(labels), max_series, std::move(buckets)});
}

std::vector<prometheus::MetricFamily> Registry::Collect() const {
  std::vector<prometheus::MetricFamily> all;
  MutexLock lock(mu_);
  for (const auto& [name, family] : families_) {
    all.push_back(family->Collect());
    if (all.back().metric.empty()) all.pop_back();
  }
  return all;
}

std::string Registry::ToText() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, Collect());
  return std::move(out).str();
}

}  // namespace penstock::metrics
