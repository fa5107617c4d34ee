// Families: builds the families of one scrape, by the names of the metric table.

#ifndef PENSTOCK_SERVER_DAEMON_METRICS_FAMILY_BUILDER_H_
#define PENSTOCK_SERVER_DAEMON_METRICS_FAMILY_BUILDER_H_

#include <prometheus/metric_family.h>

#include <string>
#include <utility>
#include <vector>

#include "server/daemon/metrics/metric_table.h"
#include "server/daemon/serving/counters.h"

namespace penstock {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class Families {
 public:
  // Adds one value to the family `name`, which must be in the table as a counter or a gauge.
  void Add(const char* name, double value, const MetricLabels& labels = {});
  // One value for each status code that was ever counted, in the label `label`.
  void AddCodes(const char* name, const CodeCounters& codes, const char* label,
                const MetricLabels& labels = {});
  void AddHistogram(const char* name, const metrics::Histogram& histogram,
                    const MetricLabels& labels);
  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  prometheus::ClientMetric& NewMetric(const char* name, const MetricLabels& labels);
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_METRICS_FAMILY_BUILDER_H_
