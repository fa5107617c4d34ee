// Whoever logs never waits for who reads: lines are bounded, lost ones counted and reported.

#include "common/log/log_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/log/log.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr size_t kQueue = 64 << 10;
constexpr int kPipe = 16 << 10;

class LogWriterTest : public ::testing::Test {
 protected:
  LogWriterTest() {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    read_ = fds[0];
    write_ = fds[1];
    EXPECT_EQ(fcntl(write_, F_SETPIPE_SZ, kPipe), kPipe);
    writer_ = std::make_unique<LogWriter>(
        write_, kQueue, [](uint64_t lost) { return "lost " + std::to_string(lost); });
  }
  ~LogWriterTest() override {
    writer_.reset();
    close(write_);
    if (read_ >= 0) close(read_);
  }
  // Whole lines, until one is `last`.
  std::vector<std::string> ReadUntil(const std::string& last) {
    std::vector<std::string> lines(1);
    char c = 0;
    while (read(read_, &c, 1) == 1) {
      if (c != '\n') {
        lines.back() += c;
      } else if (lines.back() == last) {
        return lines;
      } else {
        lines.emplace_back();
      }
    }
    ADD_FAILURE() << "the end came before " << last;
    return lines;
  }

  int read_ = -1, write_ = -1;
  std::unique_ptr<LogWriter> writer_;
};

TEST_F(LogWriterTest, LinesComeOutWholeAndInOrder) {
  for (int i = 0; i < 50; ++i) writer_->Push("line " + std::to_string(i));
  EXPECT_TRUE(writer_->Flush(Deadline::After(seconds(30))));
  const auto lines = ReadUntil("line 49");
  ASSERT_EQ(lines.size(), 50u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(lines[i], "line " + std::to_string(i));
  EXPECT_EQ(writer_->lost(), 0u);
}

// Nobody reads, and this test has but one thread: if a push waited, it would never end.
TEST_F(LogWriterTest, AReaderThatStandsStillStopsNobodyAndCostsOnlyCountedLines) {
  constexpr uint64_t kLines = 20'000;
  const std::string filler(100, 'x');
  for (uint64_t i = 0; i < kLines; ++i) writer_->Push(filler);
  EXPECT_FALSE(writer_->Flush(Deadline::After(milliseconds(20))));
  const uint64_t lost = writer_->lost();
  EXPECT_GE(lost, kLines - (kQueue + kPipe) / filler.size());
  EXPECT_LT(lost, kLines);
  // It reads again: everything that had room comes, then how much had none.
  const auto lines = ReadUntil("lost " + std::to_string(lost));
  EXPECT_EQ(lines.size() - 1, kLines - lost);
  writer_->Push("goes on");
  EXPECT_THAT(ReadUntil("goes on"), ElementsAre("goes on"));
  EXPECT_TRUE(writer_->Flush(Deadline::After(seconds(30))));
  EXPECT_EQ(writer_->lost(), lost);
}

TEST_F(LogWriterTest, AReaderThatLeftIsNoSignalAndItsLinesAreCounted) {
  close(std::exchange(read_, -1));
  for (int i = 0; i < 10; ++i) writer_->Push("for nobody");
  EXPECT_TRUE(writer_->Flush(Deadline::After(seconds(30))));
  EXPECT_EQ(writer_->lost(), 10u);
}

TEST_F(LogWriterTest, ALineLongerThanThePipeArrivesWhole) {
  const std::string line(30'000, 'y');
  writer_->Push(line);
  EXPECT_THAT(ReadUntil(line), ElementsAre(line));
}

TEST_F(LogWriterTest, EndingDoesNotWaitForAReaderThatStandsStill) {
  for (int i = 0; i < 1000; ++i) writer_->Push(std::string(100, 'x'));
  writer_.reset();
}

// What a process says last is written before it ends, however it ends by itself.
std::string LastWords(const std::function<void()>& end) {
  int fds[2];
  EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(fds[1], STDERR_FILENO);
    InitLogging({});
    PENSTOCK_LOG_ONCE_AT_START_OR_STOP(kInfo, "last words");
    end();
    _exit(99);
  }
  close(fds[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(fds[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  close(fds[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return text;
}

// The thread that writes does not come along into a child.
TEST(LogEnding, AChildWritesItsOwnLines) {
  InitLogging({});
  PENSTOCK_LOG_ONCE_AT_START_OR_STOP(kInfo, "the parent's");
  EXPECT_TRUE(FlushLog(seconds(30)));
  EXPECT_THAT(LastWords([] { FlushLog(seconds(30)); }), HasSubstr("last words"));
}

TEST(LogEnding, ExitAndFatalErrorsWriteWhatWasLoggedBefore) {
  EXPECT_THAT(LastWords([] { exit(0); }), HasSubstr("last words"));
  const std::string fatal = LastWords([] { LogFatal("CHECK 1 == 2", "a/b.cc", 7); });
  EXPECT_THAT(fatal, HasSubstr("last words"));
  EXPECT_THAT(fatal, EndsWith("level=error msg=fatal what=\"CHECK 1 == 2\" src=b.cc:7\n"));
}

TEST(LogEnding, AFatalErrorDoesNotWaitForAReaderThatStandsStill) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  ASSERT_GT(fcntl(fds[1], F_SETPIPE_SZ, kPipe), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(fds[1], STDERR_FILENO);
    InitLogging({});
    for (int i = 0; i < 200; ++i) {
      PENSTOCK_LOG_ONCE_AT_START_OR_STOP(kInfo, "much to say", {"i", i});
    }
    LogFatal("CHECK", "b.cc", 7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);  // Else it hangs, until the test's time is over.
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
  close(fds[0]);
  close(fds[1]);
}

}  // namespace
}  // namespace penstock
