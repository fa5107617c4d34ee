// The metrics of a daemon, by name: what /metrics shows, docs/operations/metrics.md lists, and no
// other. A test holds the two together.

#ifndef PENSTOCK_SERVER_DAEMON_METRICS_METRIC_TABLE_H_
#define PENSTOCK_SERVER_DAEMON_METRICS_METRIC_TABLE_H_

#include <span>

namespace penstock {

enum class MetricKind { kCounter, kGauge, kHistogram };

struct MetricDef {
  const char* name;
  MetricKind kind;
  const char* labels;  // Comma separated; "" for none.
  const char* help;
};

// In the order of the page.
std::span<const MetricDef> AllMetrics();
// The definition of `name`. Aborts on a name that is not in the table: a mistake of the code.
const MetricDef& FindMetric(const char* name);

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_METRICS_METRIC_TABLE_H_
