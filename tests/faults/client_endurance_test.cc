// Many transfers: the same few sockets, and nothing that grows with their number, whether they
// succeed, miss, fail, are cancelled or run out of time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/integration/client_values.h"
#include "tests/integration/daemon_process.h"

namespace penstock {
namespace {

using std::chrono::microseconds;

// Sockets of this machine, in any state (also those that only wait for their end), with `port` on
// either side.
size_t SocketsWithPort(uint16_t port) {
  char suffix[8];
  snprintf(suffix, sizeof(suffix), ":%04X", port);
  std::ifstream in("/proc/net/tcp");
  size_t count = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string number, local, remote;
    fields >> number >> local >> remote;
    if (local.ends_with(suffix) || remote.ends_with(suffix)) ++count;
  }
  return count;
}

class ClientEndurance : public testing::Test {
 protected:
  void StartDaemon(const std::string& listen = "tcp://127.0.0.1:0") {
    auto daemon = DaemonProcess::Start(
        {.args = {"--arena.size=32MiB", "--arena.prefault=true", "--health.interval=1h"},
         .listen = listen});
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    daemon_ = std::move(*daemon);
    // The one self-check, which has sockets of its own, is over.
    const Deadline patience = Soon();
    while (daemon_->Scrape()["penstock_self_checks_total{outcome=\"ok\"}"] == 0) {
      ASSERT_FALSE(patience.Expired());
    }
  }
  void Connect() {
    ClientOptions options;
    options.address = daemon_->address().ToString();
    options.wire = "tcp";
    client_ = std::move(Client::Create(options)).value();
    ASSERT_TRUE(client_->WaitConnected(Soon())) << client_->stats().last_error;
    ns_ = *client_->OpenNamespace(TestDescriptor());
  }
  ChunkKey Key(uint32_t n) const { return NamedKey(ns_.fingerprint(), std::to_string(n)); }

  // Runs `work(thread)` in `count` threads.
  static void InThreads(int count, const std::function<void(int)>& work) {
    std::vector<std::thread> threads;
    for (int t = 0; t < count; ++t) threads.emplace_back([&work, t] { work(t); });
    for (std::thread& thread : threads) thread.join();
  }

  // One of every way in which an operation ends.
  void Once(uint32_t n) {
    std::string memory = Value(4096, n % 64);
    const ChunkKey key = Key(n % 64);
    OperationPtr operation;
    switch (n % 8) {
      case 0:
      case 1:
        operation = client_->Store({ToStore(ns_, key, memory)}, true, Soon());
        break;
      case 2:
      case 3:
        operation = client_->Fetch({{ns_, key, {Piece(memory)}}}, {}, Soon());
        break;
      case 4:  // A miss.
        operation = client_->Fetch({{ns_, Key(1000 + n % 64), {Piece(memory)}}}, {}, Soon());
        break;
      case 5:  // No such memory.
        operation = client_->Fetch({{ns_, key, {{nullptr, 4096}}}}, {}, Soon());
        break;
      case 6:  // Cancelled on its way.
        operation = client_->Fetch({{ns_, key, {Piece(memory)}}}, {}, Soon());
        operation->Cancel();
        break;
      default:  // Out of time on its way.
        operation = client_->Store({ToStore(ns_, key, memory)}, true,
                                   Deadline::After(microseconds(n % 200)));
    }
    ASSERT_TRUE(operation->Wait(Soon(60)));
    if (n % 8 == 2 || n % 8 == 3) {
      const Status& status = operation->items()[0].status;
      if (status.ok()) {
        ASSERT_TRUE(memory == Value(4096, n % 64)) << "wrong bytes";
      } else {
        ASSERT_EQ(status.code(), Code::kMiss) << status.ToString();
      }
    }
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
  Namespace ns_;
};

TEST_F(ClientEndurance, SixtyFourThreadsShareTheSocketsOfOneSessionAlsoAfterARestart) {
  StartDaemon();
  Connect();
  const std::string listen = daemon_->address().ToString();
  const uint16_t port = daemon_->address().port;
  const size_t idle = SocketsWithPort(port);
  size_t most = idle;
  std::atomic<uint32_t> next{0};
  const auto work = [&](int thread) {
    for (int i = 0; i < 100; ++i) {
      std::string memory = Value(1000, 1);
      const uint32_t n = next++;
      client_->Store({ToStore(ns_, Key(n), memory)}, true, Soon(5))->Wait(Soon(60));
      client_->Fetch({{ns_, Key(n), {Piece(memory)}}}, {}, Soon(5))->Wait(Soon(60));
      if (thread == 0 && i % 10 == 0) most = std::max(most, SocketsWithPort(port));
    }
  };
  InThreads(64, work);
  EXPECT_LE(most, idle) << "sockets come with transfers";
  daemon_->process().Signal(SIGKILL);
  ASSERT_TRUE(daemon_->process().WaitExit().has_value());
  daemon_.reset();
  StartDaemon(listen);
  ASSERT_TRUE(client_->WaitConnected(Soon()));
  InThreads(64, work);
  // The old session's may wait for their end beside the new one's.
  EXPECT_LE(most, 2 * idle + 2);
  EXPECT_EQ(client_->stats().connects, 2u);
}

TEST_F(ClientEndurance, NothingGrowsWithTheNumberOfTransfersHoweverTheyEnd) {
  StartDaemon();
  Connect();
  const auto run = [this](uint32_t transfers) {
    InThreads(4, [&](int thread) {
      for (uint32_t i = 0; i < transfers / 4; ++i) Once(static_cast<uint32_t>(thread) + 4 * i);
    });
  };
  const auto resident = [](pid_t pid) {
    if (pid == getpid()) malloc_trim(0);  // What is free is no leak.
    return ResidentBytes(pid);
  };
  constexpr uint32_t kTransfers = kSanitized ? 8'000 : 80'000;
  run(kTransfers / 4);
  const uint64_t own = resident(getpid()), daemons = resident(daemon_->pid());
  const size_t own_fds = DescriptorCount(getpid()), daemons_fds = DescriptorCount(daemon_->pid());
  run(kTransfers);
  // Less than one small object for a transfer of the kinds that would leak it.
  const uint64_t most = kTransfers / 8 * 64;
  if (!kSanitized) {
    EXPECT_LE(resident(getpid()), own + most);
    EXPECT_LE(resident(daemon_->pid()), daemons + most);
  }
  EXPECT_LE(DescriptorCount(getpid()), own_fds);
  EXPECT_LE(DescriptorCount(daemon_->pid()), daemons_fds + 2);
  EXPECT_EQ(client_->stats().in_flight, 0u);
  EXPECT_EQ(client_->stats().connects, 1u);
}

}  // namespace
}  // namespace penstock
