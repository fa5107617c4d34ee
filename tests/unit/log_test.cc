#include "common/log/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/base/mutex.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

std::atomic<int64_t> fake_now{0};
MonotonicTime FakeClock() { return MonotonicTime(std::chrono::nanoseconds(fake_now.load())); }
void Advance(Duration d) { fake_now += d.count(); }

class LogTest : public ::testing::Test {
 protected:
  LogTest() { Init({}); }
  ~LogTest() override { InitLogging({}); }

  void Init(LogOptions options) {
    options.sink = [this](LogLevel, std::string_view line) {
      MutexLock lock(mu_);
      lines_.emplace_back(line);
    };
    options.clock = &FakeClock;
    InitLogging(options);
  }
  std::vector<std::string> Take() {
    MutexLock lock(mu_);
    return std::exchange(lines_, {});
  }
  std::string TakeOne() {
    std::vector<std::string> lines = Take();
    EXPECT_EQ(lines.size(), 1u);
    return lines.empty() ? "" : lines[0];
  }

 private:
  Mutex mu_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
};

void Fail(int attempt) {
  PENSTOCK_LOG(kError, "fetch failed", {"op", "fetch"}, {"key", "00ff00ff00ff"}, {"node", "n1"},
               {"status", Status(Code::kDisconnected, "connection reset (errno 104)")},
               {"elapsed_us", 1500}, {"attempt", attempt});
}

TEST_F(LogTest, ALineHasTimeLevelTextFieldsAndSource) {
  Fail(3);
  EXPECT_THAT(
      TakeOne(),
      MatchesRegex(R"re(ts=[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z )re"
                   R"re(level=error msg="fetch failed" op=fetch key=00ff00ff00ff node=n1 )re"
                   R"re(status="DISCONNECTED: connection reset \(errno 104\)" elapsed_us=1500 )re"
                   R"re(attempt=3 src=log_test\.cc:[0-9]+)re"));
}

TEST_F(LogTest, JsonLinesParseWhateverTheyHold) {
  Init({.format = LogFormat::kJson});
  PENSTOCK_LOG(
      kWarn, "quote \" and \\", {"text", std::string("a\nb\t\x01\x7F\xFF\"\\ \xE2\x98\x83")},
      {"min", std::numeric_limits<int64_t>::min()}, {"max", std::numeric_limits<uint64_t>::max()},
      {"ratio", 0.25}, {"inf", std::numeric_limits<double>::infinity()}, {"yes", true},
      {"c", static_cast<uint8_t>(65)});
  const std::string line = TakeOne();
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(line, nullptr, false);
  ASSERT_TRUE(json.is_object()) << line;
  EXPECT_EQ(json["level"], "warn");
  EXPECT_EQ(json["msg"], "quote \" and \\");
  EXPECT_EQ(json["text"], "a\nb\t\x01\x7F\xEF\xBF\xBD\"\\ \xE2\x98\x83");
  EXPECT_EQ(json["min"], std::numeric_limits<int64_t>::min());
  EXPECT_EQ(json["max"], std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(json["ratio"], 0.25);
  EXPECT_EQ(json["inf"], "inf");
  EXPECT_EQ(json["yes"], true);
  EXPECT_EQ(json["c"], 65);
}

TEST_F(LogTest, ValuesCannotForgeLinesOrFields) {
  PENSTOCK_LOG(kWarn, "x", {"name", "a\nts=1 level=error msg=forged"}, {"b", "k=v"}, {"c", ""});
  EXPECT_THAT(TakeOne(), HasSubstr(R"(name="a\nts=1 level=error msg=forged" b="k=v" c="" src=)"));
}

TEST_F(LogTest, ALineStaysWithinItsLengthAndSaysThatItWasCut) {
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    Init({.format = format, .max_line_bytes = 300});
    const std::string big(100'000, 'x');
    PENSTOCK_LOG(kWarn, "x", {"first", 1}, {"big", big}, {"last", 2});
    const std::string line = TakeOne();
    EXPECT_LE(line.size(), 300u);
    EXPECT_THAT(line, HasSubstr("truncated"));
    EXPECT_THAT(line, HasSubstr("first"));
    EXPECT_THAT(line, HasSubstr("last"));
    if (format == LogFormat::kJson) {
      EXPECT_TRUE(nlohmann::json::accept(line)) << line;
    }
  }
}

TEST_F(LogTest, ALongValueIsCutAndTheRestOfTheLineKept) {
  Init({.format = LogFormat::kJson});
  PENSTOCK_LOG(kWarn, "x", {"big", std::string(100'000, 'x')}, {"last", 2});
  const auto json = nlohmann::json::parse(TakeOne(), nullptr, false);
  EXPECT_EQ(json["big"], std::string(LogLine::kMaxValueBytes, 'x') + "...");
  EXPECT_EQ(json["last"], 2);
}

TEST_F(LogTest, LevelsFilterAndChangeWhileRunning) {
  int evaluated = 0;
  const auto debug = [&] { PENSTOCK_LOG(kDebug, "debug", {"n", ++evaluated}); };
  debug();
  EXPECT_TRUE(Take().empty());
  EXPECT_EQ(evaluated, 0);  // A disabled line costs no evaluation of its fields.
  SetLogLevel(LogLevel::kDebug);
  debug();
  EXPECT_THAT(TakeOne(), HasSubstr("level=debug"));
  SetLogLevel(LogLevel::kError);
  PENSTOCK_LOG(kWarn, "warn");
  EXPECT_TRUE(Take().empty());
  PENSTOCK_LOG(kError, "error");
  EXPECT_THAT(TakeOne(), HasSubstr("msg=error src="));
}

TEST_F(LogTest, LevelNamesParseAndOthersAreRefused) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError}) {
    EXPECT_EQ(*ParseLogLevel(LogLevelName(level)), level);
  }
  EXPECT_EQ(ParseLogLevel("warning").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ParseLogLevel("").status().code(), Code::kInvalidArgument);
}

TEST_F(LogTest, ASiteOpensAgainAndReportsWhatItHeldBack) {
  for (int i = 0; i < 1000; ++i) Fail(i);
  EXPECT_EQ(Take().size(), 3u);
  Advance(std::chrono::seconds(10));
  Fail(1000);
  EXPECT_THAT(TakeOne(), HasSubstr("suppressed=997"));
  Advance(std::chrono::seconds(10));
  Fail(1001);
  EXPECT_THAT(TakeOne(), Not(HasSubstr("suppressed")));
}

TEST_F(LogTest, ASiteThatFellSilentIsReportedByTheFlush) {
  for (int i = 0; i < 100; ++i) Fail(i);
  Take();
  EXPECT_EQ(FlushSuppressedLogs(), 0u);  // Its bucket is still empty.
  Advance(std::chrono::seconds(10));
  EXPECT_EQ(FlushSuppressedLogs(), 1u);
  const std::string line = TakeOne();
  EXPECT_THAT(line, HasSubstr("suppressed=97"));
  EXPECT_THAT(line, HasSubstr("like=\"fetch failed\""));
  Advance(std::chrono::seconds(10));
  EXPECT_EQ(FlushSuppressedLogs(), 0u);
}

TEST_F(LogTest, OtherLinesReportASilentSiteWithoutATimer) {
  for (int i = 0; i < 100; ++i) Fail(i);
  Take();
  Advance(std::chrono::seconds(20));
  PENSTOCK_LOG(kInfo, "something else");
  const std::vector<std::string> lines = Take();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[1], HasSubstr("suppressed=97"));
}

TEST_F(LogTest, ExitReportsTheRestInOneLine) {
  for (int i = 0; i < 100; ++i) Fail(i);
  Take();
  ReportSuppressedAtExit();
  EXPECT_THAT(TakeOne(), HasSubstr("suppressed=97 sites=1"));
  ReportSuppressedAtExit();
  EXPECT_TRUE(Take().empty());
}

TEST_F(LogTest, LinesOfAStartAreNotLimited) {
  for (int i = 0; i < 200; ++i) PENSTOCK_LOG_ONCE_AT_START_OR_STOP(kInfo, "setting", {"n", i});
  EXPECT_EQ(Take().size(), 200u);
}

// Twelve failing sites at once; each is its own instantiation of the macro.
template <int N>
void FailAt(int i) {
  if (N % 2 == 0) {
    PENSTOCK_LOG(kWarn, "many warnings", {"site", N}, {"i", i});
  } else {
    PENSTOCK_LOG(kError, "many errors", {"site", N}, {"i", i});
  }
}
void FailEverywhere(int i) {
  FailAt<0>(i), FailAt<1>(i), FailAt<2>(i), FailAt<3>(i), FailAt<4>(i), FailAt<5>(i), FailAt<6>(i),
      FailAt<7>(i), FailAt<8>(i), FailAt<9>(i), FailAt<10>(i), FailAt<11>(i);
}

TEST_F(LogTest, TenThousandFailuresASecondStayBelowAHundredLinesAMinuteWithTheFirstCauseFirst) {
  for (int minute = 0; minute < 3; ++minute) {
    size_t lines = 0;
    for (int tick = 0; tick < 600; ++tick) {  // A tenth of a second each.
      for (int i = 0; i < 1000; ++i) Fail(i);
      FailEverywhere(tick);
      Advance(std::chrono::milliseconds(100));
      const std::vector<std::string> written = Take();
      if (minute == 0 && tick == 0) {
        ASSERT_FALSE(written.empty());
        EXPECT_THAT(written[0], HasSubstr("attempt=0"));
      }
      lines += written.size();
    }
    EXPECT_LT(lines, 100u) << "minute " << minute;
    EXPECT_GT(lines, 20u) << "minute " << minute;
  }
  // Nothing is lost without being counted.
  ReportSuppressedAtExit();
  EXPECT_THAT(TakeOne(), HasSubstr("suppressed="));
}

TEST_F(LogTest, AFloodOfWarningsLeavesRoomForErrors) {
  for (int i = 0; i < 1000; ++i) {
    FailAt<0>(i), FailAt<2>(i), FailAt<4>(i), FailAt<6>(i), FailAt<8>(i), FailAt<10>(i);
  }
  Take();
  Fail(1);
  EXPECT_THAT(TakeOne(), HasSubstr("level=error"));
}

TEST_F(LogTest, DebugLinesAreBoundedToo) {
  SetLogLevel(LogLevel::kDebug);
  for (int i = 0; i < 100'000; ++i) PENSTOCK_LOG(kDebug, "hot", {"i", i});
  EXPECT_EQ(Take().size(), LogLimits().process_debug.burst);
}

TEST_F(LogTest, ThreadsTogetherKeepTheLimitAndLoseNoCount) {
  constexpr int kThreads = 4, kEach = 5000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < kEach; ++i) Fail(i);
    });
  }
  for (std::thread& t : threads) t.join();
  std::vector<std::string> lines = Take();
  EXPECT_EQ(lines.size(), 3u);
  Advance(std::chrono::seconds(10));
  EXPECT_EQ(FlushSuppressedLogs(), 1u);
  lines.push_back(TakeOne());
  // A line that one thread writes may already say how many of the others' were suppressed.
  uint64_t suppressed = 0;
  for (const std::string& line : lines) {
    constexpr std::string_view kCount = " suppressed=";
    const size_t at = line.find(kCount);
    if (at != std::string::npos) suppressed += std::stoull(line.substr(at + kCount.size()));
  }
  EXPECT_EQ(suppressed, uint64_t{kThreads} * kEach - 3);
}

static_assert(!std::is_constructible_v<LogField, std::string_view, ByteSpan>,
              "bytes cannot be logged");

TEST(LogDefaults, StandardErrorGetsWholeLines) {
  InitLogging({});
  ::testing::internal::CaptureStderr();
  PENSTOCK_LOG(kInfo, "hello", {"n", 1});
  EXPECT_TRUE(FlushLog(std::chrono::seconds(30)));
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("msg=hello n=1 src="));
  EXPECT_EQ(text.back(), '\n');
}

}  // namespace
}  // namespace penstock
