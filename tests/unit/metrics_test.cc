#include "common/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace penstock::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, TextHasNamesHelpTypesAndValues) {
  Registry registry;
  registry.AddCounter("penstock_evictions_total", "Chunks evicted.").Add(3);
  registry.AddGauge("penstock_sessions", "Sessions now.").Set(-2);
  registry.AddGaugeFunction("penstock_arena_bytes", "Size of the arena.", [] { return 4096.0; });
  EXPECT_EQ(registry.ToText(),
            "# HELP penstock_arena_bytes Size of the arena.\n"
            "# TYPE penstock_arena_bytes gauge\n"
            "penstock_arena_bytes 4096\n"
            "# HELP penstock_evictions_total Chunks evicted.\n"
            "# TYPE penstock_evictions_total counter\n"
            "penstock_evictions_total 3\n"
            "# HELP penstock_sessions Sessions now.\n"
            "# TYPE penstock_sessions gauge\n"
            "penstock_sessions -2\n");
}

TEST(Metrics, CountersStartAtZeroAndAreShownThen) {
  Registry registry;
  registry.AddCounter("penstock_evictions_total", "Chunks evicted.");
  registry.AddCounterFamily("penstock_unused_total", "No series yet.", {"x"});
  EXPECT_THAT(registry.ToText(), HasSubstr("penstock_evictions_total 0\n"));
  EXPECT_THAT(registry.ToText(), Not(HasSubstr("unused")));
}

TEST(Metrics, SeriesOfAFamilyAreKeptApartAndFoundAgain) {
  Registry registry;
  auto& stores =
      registry.AddCounterFamily("penstock_stores_total", "Items stored.", {"result", "reason"});
  Counter& committed = stores.With({"committed", ""});
  committed.Add(5);
  stores.With({"failed", "CHECKSUM_MISMATCH"}).Add();
  EXPECT_EQ(&stores.With({"committed", ""}), &committed);
  const std::string text = registry.ToText();
  EXPECT_THAT(text, HasSubstr(R"(penstock_stores_total{result="committed",reason=""} 5)"));
  EXPECT_THAT(text,
              HasSubstr(R"(penstock_stores_total{result="failed",reason="CHECKSUM_MISMATCH"} 1)"));
}

TEST(Metrics, SeriesBeyondTheLimitAreCountedAsOtherAndNothingIsLost) {
  Registry registry;
  auto& family = registry.AddCounterFamily("penstock_x_total", "X.", {"tenant"}, 10);
  for (int i = 0; i < 10'000; ++i) family.With({"t" + std::to_string(i)}).Add();
  const auto collected = registry.Collect();
  ASSERT_EQ(collected.size(), 1u);
  EXPECT_EQ(collected[0].metric.size(), 11u);  // Ten and "other".
  double sum = 0;
  for (const auto& metric : collected[0].metric) sum += metric.counter.value;
  EXPECT_EQ(sum, 10'000);
  EXPECT_EQ(family.With({"t3"}).value(), 1u);
  EXPECT_EQ(family.With({"other"}).value(), 9'990u);
}

TEST(Metrics, HostileLabelValuesStayShortValidAndOnOneLine) {
  Registry registry;
  auto& family = registry.AddCounterFamily("penstock_x_total", "X.", {"v"});
  family.With({std::string(100'000, 'a')}).Add();
  family.With({"a\"b\\c\nd\xFF\xE2\x98\x83"}).Add();
  const std::string text = registry.ToText();
  EXPECT_LT(text.size(), 400u);
  EXPECT_THAT(text, HasSubstr("{v=\"a\\\"b\\\\c?d?\xE2\x98\x83\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("{v=\"" + std::string(128, 'a') + "\"} 1\n"));
}

TEST(Histogram, CountsBoundsInclusivelyAndScales) {
  Registry registry;
  Histogram& h = registry.AddHistogram("penstock_seconds", "Took.", {{1000, 2000}, 1e-3});
  for (const uint64_t v : {0, 1000, 1001, 2000, 2001, 5000}) h.Observe(v);
  EXPECT_EQ(h.bucket(0), 2u);
  EXPECT_EQ(h.bucket(1), 2u);
  EXPECT_EQ(h.bucket(2), 2u);
  EXPECT_EQ(registry.ToText(),
            "# HELP penstock_seconds Took.\n"
            "# TYPE penstock_seconds histogram\n"
            "penstock_seconds_count 6\n"
            "penstock_seconds_sum 11.002\n"
            "penstock_seconds_bucket{le=\"1\"} 2\n"
            "penstock_seconds_bucket{le=\"2\"} 4\n"
            "penstock_seconds_bucket{le=\"+Inf\"} 6\n");
}

TEST(Histogram, DurationsGoIntoBucketsOfSeconds) {
  Registry registry;
  Histogram& h = registry.AddHistogram("penstock_seconds", "Took.", Buckets::Seconds());
  h.Observe(std::chrono::milliseconds(1));
  h.Observe(-std::chrono::milliseconds(1));
  h.Observe(std::chrono::hours(1));
  EXPECT_THAT(registry.ToText(), HasSubstr("penstock_seconds_bucket{le=\"0.001\"} 2\n"));
  EXPECT_THAT(registry.ToText(), HasSubstr("penstock_seconds_count 3\n"));
}

TEST(Metrics, ThreadsLoseNoIncrementWhileOthersCollect) {
  Registry registry;
  auto& family = registry.AddCounterFamily("penstock_x_total", "X.", {"thread"}, 2);
  Histogram& h = registry.AddHistogram("penstock_seconds", "Took.", Buckets::Seconds());
  constexpr int kThreads = 4, kEach = 20'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        family.With({std::to_string(t)}).Add();
        h.Observe(static_cast<uint64_t>(i));
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    for (const auto& collected : registry.Collect()) {
      for (const auto& metric : collected.metric) {
        if (metric.histogram.bucket.empty()) continue;
        EXPECT_EQ(metric.histogram.sample_count, metric.histogram.bucket.back().cumulative_count);
      }
    }
  }
  for (std::thread& t : threads) t.join();
  double sum = 0;
  for (const auto& metric : family.Collect().metric) sum += metric.counter.value;
  EXPECT_EQ(sum, kThreads * kEach);
  EXPECT_EQ(h.bucket(0), static_cast<uint64_t>(kThreads) * kEach);
}

TEST(MetricsDeathTest, BadDeclarationsAreBugs) {
  Registry registry;
  registry.AddCounter("penstock_a_total", "A.");
  EXPECT_DEATH(registry.AddCounter("penstock_a_total", "A."), "taken");
  EXPECT_DEATH(registry.AddCounter("penstock_a", "A."), "_total");
  EXPECT_DEATH(registry.AddGauge("penstock_b_total", "B."), "_total");
  EXPECT_DEATH(registry.AddGauge("other_b", "B."), "malformed");
  EXPECT_DEATH(registry.AddGauge("penstock_B", "B."), "malformed");
  EXPECT_DEATH(registry.AddGauge("penstock_b", ""), "help");
  EXPECT_DEATH(registry.AddHistogram("penstock_h", "H.", {{2, 2}, 1}), "ascend");
  EXPECT_DEATH(registry.AddGaugeFamily("penstock_b", "B.", {"le"}), "label");
  EXPECT_DEATH(registry.AddGaugeFamily("penstock_b", "B.", {"x"}).With({}), "label values");
}

}  // namespace
}  // namespace penstock::metrics
