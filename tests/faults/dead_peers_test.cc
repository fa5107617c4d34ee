// Either side of a session killed or frozen in the middle of everything: the other side gives back
// what it held for it, every time, and goes on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/integration/client_values.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/daemon_raw_client.h"

namespace penstock {
namespace {

using std::chrono::seconds;

size_t CountLines(const std::string& path) {
  std::ifstream in(path);
  size_t count = 0;
  for (std::string line; std::getline(in, line);) ++count;
  return count;
}

// The files of shared memory that a process has mapped.
std::vector<std::string> SharedMemoryOf(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/maps");
  std::vector<std::string> names;
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find("/dev/shm/");
    if (at != line.npos) names.push_back(line.substr(at));
  }
  return names;
}

// What a process holds.
struct Holdings {
  size_t descriptors, threads, mappings;
  uint64_t resident;
  static Holdings Of(pid_t pid) {
    return {DescriptorCount(pid), ThreadCount(pid),
            CountLines("/proc/" + std::to_string(pid) + "/maps"), ResidentBytes(pid)};
  }
  void ExpectNoMoreThan(const Holdings& before, uint64_t bytes) const {
    EXPECT_LE(descriptors, before.descriptors + 4);
    EXPECT_LE(threads, before.threads + 1);
    EXPECT_LE(mappings, before.mappings + 16);
    if (!kSanitized) {
      EXPECT_LE(resident, before.resident + bytes);
    }
  }
};

class DeadPeers : public testing::TestWithParam<const char*> {
 protected:
  void StartDaemon(std::vector<std::string> more = {}, std::string listen = "") {
    if (listen.empty()) listen = ListenFor(GetParam(), directory_.path());
    more.insert(more.end(),
                {"--wires=local,ucx,tcp", "--arena.size=256MiB", "--arena.prefault=true"});
    auto daemon = DaemonProcess::Start({.args = std::move(more), .listen = listen});
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    daemon_ = std::move(*daemon);
  }
  // A client in the middle of everything, stopped.
  std::unique_ptr<Process> StoppedVictim(size_t chunk_bytes) {
    auto victim = Process::Start({.command = {CLIENT_VICTIM_PATH, daemon_->address().ToString(),
                                              GetParam(), std::to_string(chunk_bytes)},
                                  .log_path = directory_.path() + "/victims"});
    EXPECT_TRUE(victim.ok());
    EXPECT_TRUE((*victim)->WaitStopped(seconds(60))) << (*victim)->Log();
    return std::move(*victim);
  }
  double Metric(const std::string& name) { return daemon_->Scrape()[name]; }
  bool Eventually(const std::function<bool()>& holds) {
    const Deadline deadline = Deadline::After(seconds(40));
    while (!holds()) {  // Each question is an answer of the daemon's.
      if (deadline.Expired()) return false;
    }
    return true;
  }
  bool NothingIsHeld(double sessions) {
    auto metrics = daemon_->Scrape();
    for (const char* name :
         {"penstock_in_flight{request=\"fetch\"}", "penstock_in_flight{request=\"store\"}",
          "penstock_store_pending_items", "penstock_fetch_held_chunks",
          "penstock_fetch_queued_bytes", "penstock_pending_chunks", "penstock_detached_chunks",
          "penstock_reservations", "penstock_reserved_bytes"}) {
      if (!metrics.contains(name) || metrics[name] != 0) return false;
    }
    return metrics["penstock_sessions"] == sessions;
  }
  // The whole arena can be filled with other chunks.
  void ExpectAsGoodAsNew() {
    const auto client = RawClient::Connect(daemon_->address());
    ASSERT_TRUE(client.ok());
    for (int i = 0; i < 70; ++i) {
      const ChunkKey key = (*client)->Key("after" + std::to_string(i));
      Code code = Code::kBusy;
      for (int tries = 0; tries < 100 && code == Code::kBusy; ++tries) {
        code = (*client)->Put(key, TellingBytes(key, 1, 4u << 20));
      }
      ASSERT_EQ(code, Code::kOk) << i;
    }
  }

  TempDir directory_;
  std::unique_ptr<DaemonProcess> daemon_;
};
INSTANTIATE_TEST_SUITE_P(Wires, DeadPeers, testing::Values("local", "tcp", "ucx"),
                         [](const auto& wire) { return std::string(wire.param); });

TEST_P(DeadPeers, TwentyKilledClientsLeaveNothingInTheDaemon) {
  StartDaemon();
  Holdings before{};
  for (int round = 0; round < 20; ++round) {
    const auto victim = StoppedVictim(1u << 20);
    EXPECT_EQ(Metric("penstock_sessions"), 1);
    const std::vector<std::string> shared = SharedMemoryOf(victim->pid());
    victim->Signal(SIGKILL);
    ASSERT_TRUE(victim->WaitExit().has_value());
    for (const std::string& name : shared) {
      EXPECT_FALSE(std::filesystem::exists(name)) << "left behind by a killed client";
    }
    EXPECT_TRUE(Eventually([this] { return NothingIsHeld(0); })) << round;
    if (round == 4) before = Holdings::Of(daemon_->pid());
  }
  EXPECT_TRUE(Eventually(
      [&] { return Holdings::Of(daemon_->pid()).descriptors <= before.descriptors + 4; }));
  Holdings::Of(daemon_->pid()).ExpectNoMoreThan(before, 16u << 20);
  ExpectAsGoodAsNew();
}

// It does not read, for longer than a client may be silent.
TEST_P(DeadPeers, AClientFrozenInMidFetchIsGivenUpAndDisturbsNobody) {
  StartDaemon({"--session.heartbeat=500ms", "--session.peer_timeout=5s"});
  auto other = RawClient::Connect(daemon_->address());
  ASSERT_TRUE(other.ok());
  const ChunkKey key = (*other)->Key("of another client");
  ASSERT_EQ((*other)->Put(key, TellingBytes(key, 1, 1u << 20)), Code::kOk);
  const auto victim = StoppedVictim(4u << 20);
  while (Metric("penstock_sessions") > 1) {
    const MonotonicTime start = MonotonicNow();
    const auto got = (*other)->Get(key, 1u << 20);
    ASSERT_TRUE(got.ok()) << (*other)->WaitClosed().ToString() << daemon_->process().Log();
    ASSERT_EQ(ToldVersion(key, *got), 1u);
    ASSERT_LT(MonotonicNow() - start, seconds(5));
  }
  EXPECT_TRUE(Eventually([this] { return NothingIsHeld(1); }));
  ExpectAsGoodAsNew();
  // Thawed, it finds out: every operation ends, and none with wrong bytes.
  victim->Signal(SIGCONT);
  const auto status = victim->WaitExit(seconds(90));
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *status << victim->Log();
}

TEST_P(DeadPeers, TenKilledDaemonsLeaveNothingInTheirClient) {
  StartDaemon();
  const std::string listen = daemon_->address().ToString();
  std::string memory(16u << 20, '\0');
  ClientOptions options;
  options.address = listen;
  options.wire = GetParam();
  const auto client = std::move(Client::Create(options)).value();
  ASSERT_TRUE(client->WaitConnected(Soon())) << client->stats().last_error;
  const Namespace ns = *client->OpenNamespace(TestDescriptor());
  ASSERT_TRUE(client->Register(memory.data(), memory.size()).ok());
  std::string value = Value(4u << 20, 1);
  Holdings before{};
  for (int round = 0; round < 10; ++round) {
    const ChunkKey key = NamedKey(ns.fingerprint(), "value");
    const auto store = client->Store({ToStore(ns, key, value)}, true, Soon());
    ASSERT_TRUE(store->Wait(Soon()));
    ASSERT_TRUE(store->items()[0].status.ok()) << store->items()[0].status.ToString();
    std::vector<OperationPtr> fetches;
    for (int i = 0; i < 4; ++i) {
      const iovec piece{memory.data() + i * value.size(), value.size()};
      fetches.push_back(client->Fetch({{ns, key, {piece}}}, {}, Soon()));
    }
    daemon_->process().Signal(SIGKILL);
    ASSERT_TRUE(daemon_->process().WaitExit().has_value());
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(fetches[i]->Wait(Soon()));
      const Status& status = fetches[i]->items()[0].status;
      if (status.ok()) {
        EXPECT_EQ(memory.compare(i * value.size(), value.size(), value), 0);
      } else {
        EXPECT_EQ(status.code(), Code::kDisconnected) << status.ToString();
        EXPECT_THAT(status.message(), testing::Not(testing::IsEmpty()));
      }
    }
    daemon_.reset();
    StartDaemon({}, listen);
    ASSERT_TRUE(client->WaitConnected(Soon())) << client->stats().last_error;
    if (round == 3) before = Holdings::Of(getpid());
  }
  EXPECT_EQ(client->stats().in_flight, 0u);
  Holdings::Of(getpid()).ExpectNoMoreThan(before, 16u << 20);
}

}  // namespace
}  // namespace penstock
