// penstockd whose standard error is a pipe that nobody reads: it serves, counts, and ends as ever.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>

#include "common/transport/socket.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/daemon_raw_client.h"

namespace penstock {
namespace {

class DaemonLogTest : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
    read_ = UniqueFd(fds[0]);
    write_ = UniqueFd(fds[1]);
    // Full before it starts: whoever writes to it now waits.
    ASSERT_EQ(fcntl(write_.get(), F_SETFL, O_NONBLOCK), 0);
    while (write(write_.get(), "x", 1) == 1) {
    }
    ASSERT_EQ(fcntl(write_.get(), F_SETFL, 0), 0);
    auto daemon =
        DaemonProcess::Start({.args = {"--session.hello_timeout=300ms", "--health.interval=100ms"},
                              .error_fd = write_.get()});
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    daemon_ = std::move(*daemon);
    write_.Reset();  // The daemon's alone.
  }

  // Things that a daemon logs, from its data threads.
  void GiveItMuchToSay() {
    const auto resolved = Resolve(daemon_->address(), /*passive=*/false);
    ASSERT_TRUE(resolved.ok());
    for (int i = 0; i < 40; ++i) {
      const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      ASSERT_EQ(connect(fd.get(), resolved->front().get(), resolved->front().length), 0);
      const std::string garbage(100, 'g');
      ASSERT_EQ(send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 100);
    }
    for (int i = 0; i < 40; ++i) {
      const auto client = RawClient::Connect(daemon_->address());
      ASSERT_TRUE(client.ok()) << client.status().ToString();
      const ChunkKey key = (*client)->Key(std::to_string(i));
      StoreBuilder wrong((*client)->fingerprint());
      wrong.Add(key, "bytes", /*checksum=*/1);
      const uint64_t id = (*client)->Send(MessageType::kStore, wrong.Encode());
      ASSERT_TRUE((*client)->TakeGrant(id).ok());
      (*client)->SendBytes(id, 0, 0, "bytes");
      const auto refused = (*client)->TakeStatuses(id);
      ASSERT_TRUE(refused.ok());
      EXPECT_EQ(refused->at(0), Code::kChecksumMismatch);
      EXPECT_EQ((*client)->Put(key, TellingBytes(key, 1, 5000)), Code::kOk);
      const auto got = (*client)->Get(key, 5000);
      ASSERT_TRUE(got.ok());
      EXPECT_EQ(ToldVersion(key, *got), 1u);
    }
  }
  std::string ReadAll() {
    std::string text;
    char buffer[65536];
    for (ssize_t got; (got = read(read_.get(), buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

  UniqueFd read_, write_;
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(DaemonLogTest, NobodyReadsItAndEverybodyIsServed) {
  GiveItMuchToSay();
  auto metrics = daemon_->Scrape();
  EXPECT_EQ(metrics["penstock_health_ready"], 1);
  EXPECT_GE(metrics["penstock_self_checks_total{outcome=\"ok\"}"], 1);
  EXPECT_EQ(metrics["penstock_log_lost_lines_total"], 0) << "so few find room in the queue";
  // Somebody reads again: everything is there, the first cause and the last words too.
  daemon_->process().Signal(SIGTERM);
  const std::string log = ReadAll();
  for (const char* line : {"serving", "connection refused", "chunk not committed", "stopped"}) {
    EXPECT_THAT(log, testing::HasSubstr(line));
  }
  // One line tells what was done to which chunk for whom, why that failed and after how long.
  EXPECT_THAT(log, testing::ContainsRegex("msg=\"chunk not committed\" op=store key=[0-9a-f]{12} "
                                          "bytes=5 peer=[^ ]+ name=raw-client "
                                          "status=\"CHECKSUM_MISMATCH[^\"]+\" elapsed_us=[0-9]+"));
  const auto status = daemon_->process().WaitExit();
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *status;
}

TEST_F(DaemonLogTest, NobodyEverReadsItAndItEndsInOrder) {
  daemon_->process().Signal(SIGTERM);
  const auto status = daemon_->process().WaitExit();
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *status;
}

}  // namespace
}  // namespace penstock
