// A real penstockd, killed without warning and started again, while a client works.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "tests/integration/client_values.h"
#include "tests/integration/daemon_process.h"
#include "tests/sanitizers/sanitizers.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Over each wire; the control stream is a Unix socket, whose name outlives the daemon.
class ClientRestart : public testing::TestWithParam<const char*> {
 protected:
  ClientRestart() {
    StartDaemon();
    ClientOptions options;
    options.address = address();
    options.wire = GetParam();
    client_ = std::move(Client::Create(options)).value();
    EXPECT_TRUE(client_->WaitConnected(Soon())) << client_->stats().last_error;
    EXPECT_EQ(client_->stats().wire, GetParam());
    ns_ = *client_->OpenNamespace(TestDescriptor());
  }
  ~ClientRestart() override { client_.reset(); }

  std::string address() const { return "unix://" + directory_.path() + "/socket"; }
  void StartDaemon() {
    auto daemon = DaemonProcess::Start({.args = {"--wires=local,ucx,tcp"}, .listen = address()});
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    daemon_ = std::move(*daemon);
  }
  void Kill() {
    daemon_->process().Signal(SIGKILL);
    ASSERT_TRUE(daemon_->process().WaitExit());
    daemon_.reset();
  }
  ChunkKey Key(const std::string& name) const { return NamedKey(ns_.fingerprint(), name); }
  Status Put(const std::string& name, std::string value, const Deadline& deadline = Soon()) {
    const auto store = client_->Store({ToStore(ns_, Key(name), value)}, true, deadline);
    EXPECT_TRUE(store->Wait(Soon(60)));
    return store->items()[0].status;
  }
  // The value, or the name of the code.
  std::string Get(const std::string& name, size_t room, const Deadline& deadline = Soon()) {
    std::string value(room, Landing::kPoison);
    const auto fetch = client_->Fetch({{ns_, Key(name), {Piece(value)}}}, {}, deadline);
    EXPECT_TRUE(fetch->Wait(Soon(60)));
    if (!fetch->items()[0].status.ok()) {
      return std::string(CodeName(fetch->items()[0].status.code()));
    }
    value.resize(fetch->items()[0].bytes);
    return value;
  }

  TempDir directory_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
  Namespace ns_;
};

TEST_P(ClientRestart, WorkGoesOnWithinTwoSecondsWithoutANewClient) {
  constexpr size_t kBytes = 400'000;
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  std::vector<std::jthread>
      load;  // Joined before what they use is gone, also where the test ends early.
  const absl::Cleanup end_load = [&stop] { stop = true; };
  for (int t = 0; t < 3; ++t) {
    load.emplace_back([&, t] {
      const std::string name = "load-" + std::to_string(t);
      const std::string value = Value(kBytes, static_cast<uint32_t>(t));
      while (!stop) {
        [[maybe_unused]] const Status put = Put(name, value, Soon(5));
        const std::string got = Get(name, kBytes, Soon(5));
        // Named errors are fine meanwhile, wrong bytes never are.
        if (got.size() == kBytes && got != value) ++wrong;
      }
    });
  }
  // UCX needs longer to connect, and one attempt may take all of connect_timeout.
  const seconds limit = seconds(GetParam() == std::string("ucx") ? 5 : 2) * (kSanitized ? 4 : 1);
  std::mt19937 random(22);
  for (int round = 0; round < 10; ++round) {
    ASSERT_TRUE(Put("before", "x").ok());
    const auto match = client_->Match({{ns_, {Key("before")}}}, seconds(60), Soon());
    ASSERT_TRUE(match->Wait(Soon()));
    ASSERT_NE(match->match().reservation, 0u);
    const uint64_t incarnation = client_->stats().daemon_incarnation;
    client_->Ping(Deadline::After(milliseconds(random() % 20)))->Wait(Soon());
    Kill();
    StartDaemon();
    const MonotonicTime serving = MonotonicNow();
    // Operations fail with a name, or work; the first that works ends the outage.
    Status put;
    do {
      put = Put("after", "y");
      ASSERT_TRUE(put.ok() || put.code() == Code::kDisconnected)
          << put.ToString() << "; " << client_->stats().last_error;
      ASSERT_LT(MonotonicNow() - serving, 2 * limit) << put.ToString();
      if (!put.ok()) {
        ASSERT_TRUE(client_->WaitConnected(Soon())) << client_->stats().last_error;
      }
    } while (!put.ok());
    EXPECT_LT(MonotonicNow() - serving, limit) << round;
    EXPECT_NE(client_->stats().daemon_incarnation, incarnation);
    EXPECT_EQ(Get("before", 10), "MISS");  // Memory went with the process.
    // A handle of the former life is refused by name.
    const auto release = client_->Release(match->match().reservation, Soon());
    ASSERT_TRUE(release->Wait(Soon()));
    EXPECT_EQ(release->status().code(), Code::kFenced);
  }
  stop = true;
  for (auto& thread : load) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(client_->stats().daemon_restarts, 10u);
  EXPECT_EQ(client_->stats().in_flight, 0u);
}

TEST_P(ClientRestart, RegisteredMemoryStaysUsable) {
  std::string memory = Value(1 << 20, 1);
  const auto registration = client_->Register(memory.data(), memory.size());
  ASSERT_TRUE(registration.ok());
  for (int round = 0; round < 3; ++round) {
    const auto store = client_->Store({ToStore(ns_, Key("r"), memory)}, true, Soon());
    ASSERT_TRUE(store->Wait(Soon()));
    ASSERT_TRUE(store->items()[0].status.ok()) << store->items()[0].status.ToString();
    Kill();
    StartDaemon();
    ASSERT_TRUE(client_->WaitConnected(Soon()));
  }
  EXPECT_TRUE(client_->Unregister(*registration).ok());
}

TEST_P(ClientRestart, AFrozenDaemonCostsDeadlinesOnceAndThawsCleanly) {
  const std::string value = Value(1 << 20, 2);
  ASSERT_TRUE(Put("v", value).ok());
  daemon_->process().Signal(SIGSTOP);
  ASSERT_TRUE(daemon_->process().WaitStopped());
  EXPECT_EQ(Get("v", value.size(), Deadline::After(milliseconds(600))), "DEADLINE_EXCEEDED");
  const MonotonicTime start = MonotonicNow();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Get("v", value.size(), Soon(5)), "DISCONNECTED");
  }
  EXPECT_LT(MonotonicNow() - start, seconds(5));
  daemon_->process().Signal(SIGCONT);
  const Deadline deadline = Soon();
  std::string got;
  while ((got = Get("v", value.size())) != value && !deadline.Expired()) {
    ASSERT_TRUE(got == "DISCONNECTED" || got == "DEADLINE_EXCEEDED") << got;
    client_->WaitConnected(Soon());
  }
  EXPECT_EQ(got == value, true);
}

TEST_P(ClientRestart, OneSessionServesEverythingWhateverHappens) {
  const size_t before = DescriptorCount(getpid());
  std::vector<std::thread> threads;
  for (int t = 0; t < 32; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        const std::string name = std::to_string(t) + "." + std::to_string(i);
        [[maybe_unused]] const Status put = Put(name, Value(3'000, 1), Soon(5));
        Get(name, 3'000, Soon(5));
      }
    });
  }
  Kill();
  StartDaemon();
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(client_->WaitConnected(Soon()));
  EXPECT_TRUE(Put("x", "y").ok());
  EXPECT_LE(client_->stats().connects, 2u);
  EXPECT_LE(DescriptorCount(getpid()), before + 8);
}

INSTANTIATE_TEST_SUITE_P(Local, ClientRestart, testing::Values("local"));
INSTANTIATE_TEST_SUITE_P(Tcp, ClientRestart, testing::Values("tcp"));
INSTANTIATE_TEST_SUITE_P(Ucx, ClientRestart, testing::Values("ucx"));

}  // namespace
}  // namespace penstock
