// DaemonMetrics: turns what the daemon knows into what /metrics shows, at the moment of the scrape.
// Nothing is counted here, so a scrape and the administration interface always agree.
//
// Thread safety: every method may be called from any thread.

#ifndef PENSTOCK_SERVER_DAEMON_METRICS_DAEMON_METRICS_H_
#define PENSTOCK_SERVER_DAEMON_METRICS_DAEMON_METRICS_H_

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/deadline.h"
#include "common/keys/chunk_key.h"
#include "common/transport/message_budget.h"
#include "server/daemon/health/health_monitor.h"
#include "server/daemon/serving/serving.h"

namespace penstock {

class DaemonMetrics final : public prometheus::Collectable {
 public:
  struct Sources {
    const Serving& serving;
    const MessageBudget& messages;
    std::function<HealthReport()> health;
    std::string version;
    MonotonicTime started;
    Fingerprint internal_ns;  // Of the self-check: left out.
  };
  // What `sources` names outlives the metrics.
  explicit DaemonMetrics(Sources sources) : sources_(std::move(sources)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

  // The same as lines: "penstock_sessions", "penstock_in_flight{request=\"fetch\"}" and so on.
  std::vector<std::pair<std::string, double>> Flat() const;

 private:
  const Sources sources_;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_METRICS_DAEMON_METRICS_H_
