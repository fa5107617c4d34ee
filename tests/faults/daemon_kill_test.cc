// penstockd killed at random moments under load, again and again: its clients go on, and nobody
// ever sees a wrong byte or half a chunk.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <random>
#include <thread>

#include "client/lib/client.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/daemon_raw_client.h"

namespace penstock {
namespace {

constexpr size_t kBytes = 300'000;
constexpr int kKeys = 12;

class DaemonKillTest : public testing::Test {
 protected:
  void StartDaemon(const std::string& listen = "tcp://127.0.0.1:0") {
    auto daemon = DaemonProcess::Start({.listen = listen});
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    daemon_ = std::move(*daemon);
  }
  static Deadline Soon() { return Deadline::After(std::chrono::seconds(20)); }

  // One client of its own: stores and fetches telling bytes until told to stop.
  void Work(const std::string& address, uint32_t number) {
    ClientOptions options;
    options.address = address;
    options.wire = "tcp";
    auto client = Client::Create(options);
    if (!client.ok()) return void(++wrong_);
    const auto ns = (*client)->OpenNamespace(TestNamespace());
    if (!ns.ok()) return void(++wrong_);
    std::mt19937 random(number);
    while (!over_) {
      const ChunkKey key = NamedKey(ns->fingerprint(), "key" + std::to_string(random() % kKeys));
      if (random() % 3 == 0) {
        Store(**client, *ns, key, number);
      } else {
        Fetch(**client, *ns, key);
      }
    }
  }

  void Store(Client& client, const Namespace& ns, const ChunkKey& key, uint32_t version) {
    std::string bytes = TellingBytes(key, version, kBytes);
    const auto store =
        client.Store({{.ns = ns, .key = key, .pieces = {{bytes.data(), bytes.size()}}}},
                     /*replace=*/true, Soon());
    if (!store->Wait(Deadline::After(std::chrono::seconds(60)))) return void(++wrong_);
    if (store->items()[0].status.ok()) {
      ++stored_;
    } else if (store->items()[0].status.code() == Code::kDisconnected) {
      client.WaitConnected(Soon());
    }
  }

  void Fetch(Client& client, const Namespace& ns, const ChunkKey& key) {
    std::string bytes(kBytes + 64, '\xa5');
    const auto fetch =
        client.Fetch({{.ns = ns, .key = key, .pieces = {{bytes.data(), kBytes}}}}, {}, Soon());
    if (!fetch->Wait(Deadline::After(std::chrono::seconds(60)))) return void(++wrong_);
    if (bytes.substr(kBytes) != std::string(64, '\xa5')) ++wrong_;
    if (fetch->items()[0].status.ok()) {
      ++fetched_;
      if (!ToldVersion(key, std::string_view(bytes).substr(0, kBytes))) ++wrong_;
    } else if (fetch->items()[0].status.code() == Code::kDisconnected) {
      client.WaitConnected(Soon());
    }
  }

  void Run(int rounds) {
    StartDaemon();
    const std::string listen = daemon_->address().ToString();
    std::vector<std::thread> workers;
    for (uint32_t i = 1; i <= 3; ++i) workers.emplace_back([this, &listen, i] { Work(listen, i); });
    std::mt19937 random(rounds);
    for (int round = 0; round < rounds; ++round) {
      const int before = fetched_ + stored_;
      const auto observer = RawClient::Connect(daemon_->address());
      ASSERT_TRUE(observer.ok());
      // A random amount of the work of others, each step a round trip.
      const auto steps = 1 + random() % 300;
      for (uint32_t i = 0; i < steps || fetched_ + stored_ < before + 10; ++i) {
        ASSERT_TRUE((*observer)->Match({(*observer)->Key("key0")}).ok());
      }
      daemon_->process().Signal(SIGKILL);
      ASSERT_TRUE(daemon_->process().WaitExit().has_value());
      daemon_.reset();
      StartDaemon(listen);
    }
    over_ = true;
    for (std::thread& worker : workers) worker.join();
    EXPECT_EQ(wrong_, 0);
    EXPECT_GE(fetched_ + stored_, 10 * rounds);
    EXPECT_GT(fetched_, 0);
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::atomic<bool> over_{false};
  std::atomic<int> wrong_{0}, fetched_{0}, stored_{0};
};

TEST_F(DaemonKillTest, ClientsGoOnAndSeeNoWrongByte) { Run(10); }
// Run by the label `long`.
TEST_F(DaemonKillTest, DISABLED_ClientsGoOnThroughTwoHundredKills) { Run(200); }

}  // namespace
}  // namespace penstock
