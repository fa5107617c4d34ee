#include "server/daemon/metrics/family_builder.h"

#include <limits>

namespace penstock {
namespace {

prometheus::MetricType TypeOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return prometheus::MetricType::Counter;
    case MetricKind::kHistogram:
      return prometheus::MetricType::Histogram;
    case MetricKind::kGauge:
      break;
  }
  return prometheus::MetricType::Gauge;
}

}  // namespace

prometheus::ClientMetric& Families::NewMetric(const char* name, const MetricLabels& labels) {
  if (families_.empty() || families_.back().name != name) {
    const MetricDef& def = FindMetric(name);
    prometheus::MetricFamily family;
    family.name = def.name;
    family.help = def.help;
    family.type = TypeOf(def.kind);
    families_.push_back(std::move(family));
  }
  prometheus::ClientMetric& metric = families_.back().metric.emplace_back();
  for (const auto& [label, text] : labels) metric.label.push_back({label, text});
  return metric;
}

void Families::Add(const char* name, double value, const MetricLabels& labels) {
  prometheus::ClientMetric& metric = NewMetric(name, labels);
  if (families_.back().type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
}

void Families::AddCodes(const char* name, const CodeCounters& codes, const char* label,
                        const MetricLabels& labels) {
  for (uint16_t number = 0; number < kCodeCount; ++number) {
    const Code code = CodeFromWire(number);
    const uint64_t count = codes[code].value();
    // OK is always there, so that a rate has something to start from.
    if (count == 0 && code != Code::kOk) continue;
    MetricLabels all = labels;
    all.emplace_back(label, std::string(CodeName(code)));
    Add(name, static_cast<double>(count), all);
  }
}

void Families::AddHistogram(const char* name, const metrics::Histogram& histogram,
                            const MetricLabels& labels) {
  prometheus::ClientMetric& metric = NewMetric(name, labels);
  const metrics::Buckets& buckets = histogram.buckets();
  uint64_t cumulative = 0;
  for (size_t i = 0; i <= buckets.bounds.size(); ++i) {
    cumulative += histogram.bucket(i);
    const double bound = i < buckets.bounds.size()
                             ? static_cast<double>(buckets.bounds[i]) * buckets.scale
                             : std::numeric_limits<double>::infinity();
    metric.histogram.bucket.push_back({cumulative, bound});
  }
  metric.histogram.sample_count = cumulative;
  metric.histogram.sample_sum = static_cast<double>(histogram.sum()) * buckets.scale;
}

}  // namespace penstock
