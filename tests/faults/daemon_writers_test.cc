// Writers that die or freeze in mid-store: nothing they held stays, nothing they send later lands.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>

#include "tests/integration/daemon_process.h"
#include "tests/integration/daemon_raw_client.h"
#include "tests/sanitizers/sanitizers.h"

namespace penstock {
namespace {

constexpr size_t kBytes = 4u << 20;

class DaemonWritersTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start(
        {.args = {"--wires=local,ucx,tcp", "--arena.size=128MiB", "--session.heartbeat=200ms",
                  "--session.peer_timeout=1500ms"},
         .listen = ListenFor(GetParam(), directory_.path())});
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    daemon_ = std::move(*daemon);
    auto client = RawClient::Connect(daemon_->address());
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    client_ = std::move(*client);
  }

  // A writer that has stored half of version 1 of `name` and stopped.
  std::unique_ptr<Process> StoppedWriter(const std::string& name, int deadline_ms) {
    auto writer =
        Process::Start({.command = {DAEMON_WRITER_PATH, daemon_->address().ToString(), GetParam(),
                                    name, std::to_string(kBytes), "1", std::to_string(deadline_ms)},
                        .log_path = directory_.path() + "/writers"});
    EXPECT_TRUE(writer.ok());
    EXPECT_TRUE((*writer)->WaitStopped());
    return std::move(*writer);
  }

  double Metric(const std::string& name) { return daemon_->Scrape()[name]; }
  // Asks until it is so; the daemon's answers are what takes the time in between.
  bool Eventually(const std::function<bool()>& holds) {
    const Deadline deadline = Deadline::After(std::chrono::seconds(30));
    while (!holds()) {
      if (deadline.Expired()) return false;
    }
    return true;
  }

  TempDir directory_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> client_;
};

INSTANTIATE_TEST_SUITE_P(Wires, DaemonWritersTest, testing::Values("local", "tcp", "ucx"),
                         [](const auto& wire) { return std::string(wire.param); });

TEST_P(DaemonWritersTest, AKilledWritersKeyIsFreeAgainAndNothingGrows) {
  const double used = Metric("penstock_arena_used_bytes");
  size_t descriptors = 0;
  uint64_t resident = 0;
  for (int round = 0; round < 20; ++round) {
    const auto writer = StoppedWriter("victim", 60000);
    const ChunkKey key = client_->Key("victim");
    EXPECT_EQ(client_->Get(key).status().code(), Code::kMiss) << "half a chunk is visible";
    EXPECT_EQ(client_->Match({key})->matched_chunks, 0u);
    writer->Signal(SIGKILL);
    ASSERT_TRUE(writer->WaitExit().has_value());
    EXPECT_TRUE(Eventually([&] { return Metric("penstock_pending_chunks") == 0; }));
    ASSERT_EQ(client_->Put(key, TellingBytes(key, 2, kBytes)), Code::kOk);
    const auto got = client_->Get(key);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(ToldVersion(key, *got), 2u);
    EXPECT_EQ(client_->Keys(MessageType::kDrop, {key})[0], Code::kOk);
    if (round == 4) {
      descriptors = DescriptorCount(daemon_->pid());
      resident = ResidentBytes(daemon_->pid());
    }
  }
  EXPECT_TRUE(Eventually([&] { return Metric("penstock_arena_used_bytes") == used; }));
  EXPECT_TRUE(Eventually([&] { return Metric("penstock_sessions") == 1; }));
  EXPECT_LE(DescriptorCount(daemon_->pid()), descriptors + 4);
  if (!kSanitized) {  // AddressSanitizer keeps what is freed.
    EXPECT_LE(ResidentBytes(daemon_->pid()), resident + (24u << 20));
  }
}

TEST_P(DaemonWritersTest, AFrozenWritersLateBytesLandNowhere) {
  // Neighbours on both sides of whatever space the frozen writer had.
  std::vector<ChunkKey> neighbours;
  for (int i = 0; i < 4; ++i) {
    neighbours.push_back(client_->Key("neighbour" + std::to_string(i)));
    ASSERT_EQ(client_->Put(neighbours.back(), TellingBytes(neighbours.back(), 1, kBytes)),
              Code::kOk);
  }
  for (int round = 0; round < 5; ++round) {
    const std::string name = "contested" + std::to_string(round);
    const ChunkKey key = client_->Key(name);
    const auto writer = StoppedWriter(name, 300);
    EXPECT_TRUE(Eventually([&] { return Metric("penstock_pending_chunks") == 0; }));
    ASSERT_EQ(client_->Put(key, TellingBytes(key, 2, kBytes)), Code::kOk);
    writer->Signal(SIGCONT);
    const auto status = writer->WaitExit(std::chrono::seconds(60));
    ASSERT_TRUE(status.has_value());
    ASSERT_TRUE(WIFEXITED(*status));
    const auto told = static_cast<Code>(WEXITSTATUS(*status));
    EXPECT_THAT(told, testing::AnyOf(Code::kDeadlineExceeded, Code::kDisconnected));
    const auto got = client_->Get(key);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(ToldVersion(key, *got), 2u);
    EXPECT_EQ(client_->Keys(MessageType::kDrop, {key})[0], Code::kOk);
  }
  for (const ChunkKey& key : neighbours) {
    const auto got = client_->Get(key);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(ToldVersion(key, *got), 1u);
  }
}

TEST_P(DaemonWritersTest, AFrozenClientIsGivenUpAfterItsSilence) {
  const auto writer = StoppedWriter("silent", 60000);
  EXPECT_EQ(Metric("penstock_sessions"), 2);
  EXPECT_TRUE(Eventually([&] { return Metric("penstock_sessions") == 1; }));
  EXPECT_EQ(Metric("penstock_pending_chunks"), 0);
  const ChunkKey key = client_->Key("silent");
  EXPECT_EQ(client_->Put(key, "free again"), Code::kOk);
}

}  // namespace
}  // namespace penstock
