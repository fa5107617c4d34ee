// DaemonTest: a whole Daemon in this process, on free ports, with what tests ask of it.

#ifndef PENSTOCK_TESTS_INTEGRATION_DAEMON_FIXTURE_H_
#define PENSTOCK_TESTS_INTEGRATION_DAEMON_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "server/daemon/daemon.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/daemon_raw_client.h"

namespace penstock {

inline DaemonOptions SmallDaemon() {
  DaemonOptions options;
  options.listen = {{Address{.host = "127.0.0.1"}}};
  options.wires = {"tcp"};
  options.store.arena.bytes = 64u << 20;
  options.data_threads = 2;
  options.metrics = false;  // Its server takes two seconds to stop.
  options.version = "penstockd test";
  return options;
}

class DaemonTest : public testing::Test {
 protected:
  void Start(DaemonOptions options = SmallDaemon()) {
    daemon_.reset();
    auto daemon = Daemon::Start(std::move(options));
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    daemon_ = std::move(*daemon);
  }
  Address address() const { return daemon_->addresses().front(); }

  std::unique_ptr<RawClient> Connect(RawClient::Options options = {}) const {
    options.address = address();
    auto client = RawClient::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    return client.ok() ? std::move(*client) : nullptr;
  }

  std::map<std::string, double> Metrics() const {
    const auto flat = daemon_->metrics().Flat();
    return {flat.begin(), flat.end()};
  }
  double Metric(const std::string& name) const {
    const auto metrics = Metrics();
    const auto it = metrics.find(name);
    return it == metrics.end() ? 0 : it->second;
  }

  // Asks until `holds` does, at most `patience`; between two questions a data thread is asked for a
  // sign of life, so that nothing spins.
  bool Eventually(const std::function<bool()>& holds,
                  Duration patience = std::chrono::seconds(30)) const {
    const Deadline deadline = Deadline::After(patience);
    while (!holds()) {
      if (deadline.Expired()) return false;
      Pause(std::chrono::milliseconds(2));
    }
    return true;
  }
  // Lets `time` go by on a loop of the daemon.
  void Pause(Duration time) const {
    Mutex mu;
    CondVar over;
    bool done = false;
    const Deadline deadline = Deadline::After(time);
    MutexLock lock(mu);
    while (!done) done = !over.WaitUntil(mu, deadline.at());
  }

  // Everything that must be zero when nobody asks for anything.
  void ExpectIdle() const {
    EXPECT_TRUE(Eventually([this] {
      const auto metrics = Metrics();
      for (const char* name :
           {"penstock_in_flight{request=\"fetch\"}", "penstock_in_flight{request=\"store\"}",
            "penstock_store_pending_items", "penstock_fetch_held_chunks",
            "penstock_fetch_held_bytes", "penstock_fetch_queued_bytes", "penstock_verify_queue",
            "penstock_pending_chunks", "penstock_pending_bytes", "penstock_detached_chunks",
            "penstock_reservations", "penstock_reserved_chunks"}) {
        if (metrics.at(name) != 0) return false;
      }
      return true;
    }));
  }

  std::unique_ptr<Daemon> daemon_;
};

}  // namespace penstock

#endif  // PENSTOCK_TESTS_INTEGRATION_DAEMON_FIXTURE_H_
