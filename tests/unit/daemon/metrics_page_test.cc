// docs/operations/metrics.md and the program list the same metrics, with the same words.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "common/keys/namespace.h"
#include "server/daemon/health/self_check.h"
#include "server/daemon/metrics/daemon_metrics.h"
#include "server/daemon/metrics/metric_table.h"

namespace penstock {
namespace {

// "| `penstock_x` | counter | `a`, `b` | help |" for each metric.
std::vector<std::string> PageRows() {
  std::ifstream in(PENSTOCK_SOURCE_DIR "/docs/operations/metrics.md");
  std::vector<std::string> rows;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("| `penstock_", 0) == 0) rows.push_back(line);
  }
  return rows;
}

std::string Row(const MetricDef& def) {
  static constexpr const char* kKinds[] = {"counter", "gauge", "histogram"};
  std::string labels;
  std::istringstream words(def.labels);
  for (std::string label; std::getline(words, label, ',');) {
    labels += (labels.empty() ? "`" : ", `") + label + "`";
  }
  return std::string("| `") + def.name + "` | " + kKinds[static_cast<int>(def.kind)] + " | " +
         labels + " | " + def.help + " |";
}

TEST(MetricsPage, ListsEveryMetricAndNoOther) {
  std::vector<std::string> rows;
  for (const MetricDef& def : AllMetrics()) rows.push_back(Row(def));
  EXPECT_THAT(PageRows(), testing::ElementsAreArray(rows));
}

TEST(MetricsPage, AScrapeShowsEveryMetricWithItsLabels) {
  ChunkStoreOptions options;
  options.arena.bytes = 16u << 20;
  auto store = ChunkStore::Create(options);
  ASSERT_TRUE(store.ok());
  auto workers = WorkerPool::Start(1, 1);
  ASSERT_TRUE(workers.ok());
  Serving serving(**store, **workers, ServingLimits{});
  const MessageBudget messages(1u << 20);
  const DaemonMetrics metrics({.serving = serving,
                               .messages = messages,
                               .health = [] { return HealthReport{}; },
                               .version = "test",
                               .started = MonotonicNow(),
                               .internal_ns = SelfCheckNamespace().ComputeFingerprint()});
  std::set<std::string> shown;
  for (const prometheus::MetricFamily& family : metrics.Collect()) {
    EXPECT_TRUE(shown.insert(family.name).second) << family.name << " comes twice";
    const MetricDef& def = FindMetric(family.name.c_str());
    ASSERT_FALSE(family.metric.empty());
    for (const prometheus::ClientMetric& metric : family.metric) {
      std::string labels;
      for (const auto& label : metric.label) labels += (labels.empty() ? "" : ",") + label.name;
      EXPECT_EQ(labels, def.labels) << family.name;
    }
  }
  for (const MetricDef& def : AllMetrics()) EXPECT_TRUE(shown.contains(def.name)) << def.name;
}

}  // namespace
}  // namespace penstock
