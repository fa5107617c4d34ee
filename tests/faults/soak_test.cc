// The soak: `penstock bench` with random sizes, evictions and cancelled operations, against a
// daemon that is killed every few seconds, and from clients that are killed every few seconds. No
// byte may be wrong, and at the end memory and descriptors are what they were after the first
// minutes.
//
// PENSTOCK_TEST_SOAK_SECONDS sets how long each part takes: 60 by default, 600 by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "common/config/environment.h"
#include "tests/integration/daemon_process.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

int SoakSeconds() {
  int duration = 60;
  if (const auto text = EnvironmentVariable("PENSTOCK_TEST_SOAK_SECONDS")) {
    std::from_chars(text->data(), text->data() + text->size(), duration);
  }
  return std::max(duration, 10);
}

class Soak : public testing::Test {
 protected:
  std::unique_ptr<Process> Bench(std::vector<std::string> args) {
    args.insert(args.begin(), {PENSTOCK_CLI_PATH, "bench", "--json", "--threads", "3", "--keys",
                               "2000", "--sizes", "64B..1MiB", "--cancel-percent", "2"});
    log_ = directory_.path() + "/bench" + std::to_string(++benches_);
    auto process = Process::Start({.command = args, .log_path = log_});
    EXPECT_TRUE(process.ok());
    return std::move(*process);
  }
  // The report that a bench ends with.
  static nlohmann::json ReportOf(const Process& bench) {
    const std::string log = bench.Log();
    const size_t at = log.find('{');
    auto report =
        at == log.npos ? nlohmann::json() : nlohmann::json::parse(log.substr(at), nullptr, false);
    EXPECT_TRUE(report.is_object()) << log;
    return report;
  }

  TempDir directory_;
  std::string log_;
  int benches_ = 0;
};

TEST_F(Soak, AClientWhoseDaemonIsKilledAgainAndAgain) {
  const int duration = SoakSeconds();
  const auto bench = Bench({"--with-daemon", "--daemon", PenstockdPath(), "--arena", "128MiB",
                            "--kill-every", "3s", "--duration", std::to_string(duration) + "s"});
  const auto status = bench->WaitExit(seconds(duration + 120));
  ASSERT_TRUE(status.has_value()) << "it hangs: " << bench->Log();
  const nlohmann::json report = ReportOf(*bench);
  ASSERT_TRUE(report.is_object());
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << report;
  EXPECT_EQ(report["wrong"], 0) << report["complaints"];
  EXPECT_GE(report["kills"], duration / 15);
  EXPECT_EQ(report["daemon_restarts"].get<int>() > 0, true);
  EXPECT_GT(report["hits"], 0);
  EXPECT_GT(report["stored"], 0);
  EXPECT_GT(report["cancelled"], 0);
  // By the line through the second half of the samples, how much that half added.
  const double operations = report["operations"];
  const double grown = report["rss"]["bytes_per_operation"].get<double>() * operations / 2;
  EXPECT_LT(grown, 24e6) << report["rss"];
  EXPECT_LE(report["descriptors"]["last"].get<int>(), report["descriptors"]["first"].get<int>() + 2)
      << report["descriptors"];
  EXPECT_LE(report["descriptors"]["most"].get<int>(),
            report["descriptors"]["first"].get<int>() + 16)
      << report["descriptors"];
  RecordProperty("operations", static_cast<int>(operations));
}

TEST_F(Soak, ADaemonWhoseClientsAreKilledAgainAndAgain) {
  const int duration = SoakSeconds();
  auto started = DaemonProcess::Start({.args = {"--arena.size=128MiB", "--arena.prefault=true"}});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  DaemonProcess& daemon = **started;
  // A client that is there all the time, and judges every byte.
  const auto judge = Bench(
      {"--address", daemon.address().ToString(), "--duration", std::to_string(duration) + "s"});
  std::mt19937 random(7);
  const Deadline end = Deadline::After(seconds(duration));
  size_t descriptors = 0, threads = 0;
  uint64_t resident = 0;
  int kills = 0;
  while (end.Left() > seconds(1)) {
    // Its own values, and the same keys as the judge's under another name.
    const auto victim = Bench({"--address", daemon.address().ToString(), "--namespace", "victims",
                               "--duration", "1h", "--seed", std::to_string(random())});
    EXPECT_FALSE(victim->WaitExit(milliseconds(200 + random() % 2500)).has_value());
    victim->Signal(SIGKILL);
    ASSERT_TRUE(victim->WaitExit().has_value());
    ++kills;
    if (kills == 3) {
      descriptors = DescriptorCount(daemon.pid());
      threads = ThreadCount(daemon.pid());
      resident = ResidentBytes(daemon.pid());
    }
  }
  const auto status = judge->WaitExit(seconds(120));
  ASSERT_TRUE(status.has_value()) << "it hangs: " << judge->Log();
  const nlohmann::json report = ReportOf(*judge);
  ASSERT_TRUE(report.is_object());
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << report;
  EXPECT_EQ(report["wrong"], 0) << report["complaints"];
  EXPECT_EQ(report["connects"], 1) << "the judge lost its session";
  ASSERT_GE(kills, 4);
  const Deadline patience = Deadline::After(seconds(30));
  while (daemon.Scrape()["penstock_sessions"] != 0 && !patience.Expired()) {
  }
  auto metrics = daemon.Scrape();
  for (const char* name : {"penstock_sessions", "penstock_in_flight{request=\"fetch\"}",
                           "penstock_in_flight{request=\"store\"}", "penstock_store_pending_items",
                           "penstock_fetch_held_chunks", "penstock_pending_chunks",
                           "penstock_detached_chunks", "penstock_reservations"}) {
    EXPECT_EQ(metrics[name], 0) << name;
  }
  EXPECT_GT(metrics["penstock_removed_chunks_total{how=\"evicted\"}"], 0);
  EXPECT_LE(DescriptorCount(daemon.pid()), descriptors);
  EXPECT_LE(ThreadCount(daemon.pid()), threads);
  EXPECT_LE(ResidentBytes(daemon.pid()), resident + (24u << 20));
  RecordProperty("kills", kills);
}

}  // namespace
}  // namespace penstock
