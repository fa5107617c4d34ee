#include "common/base/units.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace penstock {
namespace {

using std::chrono::hours, std::chrono::milliseconds, std::chrono::minutes, std::chrono::seconds;

TEST(ParseBytes, ReadsEveryUnitExactly) {
  const std::pair<std::string_view, uint64_t> cases[] = {
      {"0", 0},
      {"17", 17},
      {"17B", 17},
      {"64KiB", 65536},
      {"64KB", 64000},
      {"3MiB", 3u << 20},
      {"3MB", 3'000'000},
      {"4GiB", uint64_t{4} << 30},
      {"10GB", 10'000'000'000},
      {"10 GB", 10'000'000'000},
      {"2TiB", uint64_t{2} << 40},
      {"2TB", 2'000'000'000'000},
      {"1PiB", uint64_t{1} << 50},
      {"1PB", 1'000'000'000'000'000},
      {"1e9", 1'000'000'000},
      {"1e10", 10'000'000'000},
      {"1.5e3", 1500},
      {"1.5GiB", uint64_t{3} << 29},
      {"0.5KiB", 512},
      {"1e0KiB", 1024},
      {"9223372036854775807", (uint64_t{1} << 63) - 1}};
  for (const auto& [text, bytes] : cases) {
    const Result<uint64_t> parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status().ToString();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ParseBytes, RefusesWhatIsNotClearlyMeant) {
  for (const std::string_view text : {"",
                                      " ",
                                      "GB",
                                      "10gb",
                                      "10Gb",
                                      "10GIB",
                                      "10gib",
                                      "10G",
                                      "10K",
                                      "10Gi",
                                      "-1",
                                      "-1GB",
                                      "+1",
                                      "1,000",
                                      "1_000",
                                      "10GB,",
                                      "10GB ",
                                      " 10GB",
                                      "10  GB",
                                      "10\tGB",
                                      "10GB x",
                                      "0x10",
                                      "1.",
                                      ".5",
                                      "1.5",
                                      "1.5B",
                                      "0.3KiB",
                                      "1e",
                                      "1e-3",
                                      "1E9",
                                      "1e31",
                                      "ten",
                                      "inf",
                                      "nan",
                                      "10 ",
                                      "1e99999999999",
                                      "9223372036854775808",
                                      "18446744073709551616",
                                      "9300000TB",
                                      "8192PiB",
                                      "4GiB4"}) {
    EXPECT_EQ(ParseBytes(text).status().code(), Code::kInvalidArgument) << "\"" << text << "\"";
  }
}

TEST(ParseBytes, SaysWhatWasProbablyMeant) {
  for (const std::string_view text : {"10gb", "10G", "10Gi", "10gib", "10g"}) {
    const std::string message = ParseBytes(text).status().message();
    EXPECT_NE(message.find("GB (powers of 1000) or GiB (powers of 1024)"), std::string::npos)
        << message;
  }
  EXPECT_EQ(ParseBytes("10xyz").status().message().find("mean"), std::string::npos);
}

TEST(ParseDuration, ReadsEveryUnitExactly) {
  const std::pair<std::string_view, Duration> cases[] = {{"0", Duration(0)},
                                                         {"0s", Duration(0)},
                                                         {"5ns", Duration(5)},
                                                         {"7us", Duration(7000)},
                                                         {"500ms", milliseconds(500)},
                                                         {"1.5s", milliseconds(1500)},
                                                         {"1.5 s", milliseconds(1500)},
                                                         {"2m", minutes(2)},
                                                         {"24h", hours(24)},
                                                         {"1e3ms", seconds(1)}};
  for (const auto& [text, duration] : cases) {
    const Result<Duration> parsed = ParseDuration(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status().ToString();
    EXPECT_EQ(*parsed, duration) << text;
  }
}

TEST(ParseDuration, RefusesWhatIsNotClearlyMeant) {
  for (const std::string_view text : {"", "500", "ms", "-5ms", "5 ", "5  ms", "5MS", "5sec",
                                      "1m30s", "5ms,", "0.5ns", "1d", "9999999999h", "5 ms "}) {
    EXPECT_EQ(ParseDuration(text).status().code(), Code::kInvalidArgument) << "\"" << text << "\"";
  }
  EXPECT_NE(ParseDuration("500").status().message().find("unit is missing"), std::string::npos);
}

TEST(Format, ExactFormsReadBack) {
  EXPECT_EQ(FormatBytes(0), "0");
  EXPECT_EQ(FormatBytes(4097), "4097");
  EXPECT_EQ(FormatBytes(uint64_t{4} << 30), "4GiB");
  EXPECT_EQ(FormatBytes(10'000'000'000), "10GB");
  EXPECT_EQ(FormatDuration(milliseconds(1500)), "1500ms");
  EXPECT_EQ(FormatDuration(seconds(90)), "90s");
  EXPECT_EQ(FormatDuration(-seconds(60)), "-1m");
  std::mt19937_64 rng(1);
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t value = (rng() >> 1) >> (rng() % 63);
    ASSERT_EQ(*ParseBytes(FormatBytes(value)), value);
    ASSERT_EQ(*ParseDuration(FormatDuration(Duration(value))), Duration(value));
  }
}

TEST(Format, RoughFormsHaveThreeDigits) {
  EXPECT_EQ(RoughBytes(0), "0 B");
  EXPECT_EQ(RoughBytes(1023), "1023 B");
  EXPECT_EQ(RoughBytes(1536), "1.50 KiB");
  EXPECT_EQ(RoughBytes(10'000'000'000), "9.31 GiB");
  EXPECT_EQ(RoughBytes(uint64_t{500} << 30), "500 GiB");
  EXPECT_EQ(RoughBytes(std::numeric_limits<uint64_t>::max()), "16384 PiB");
  EXPECT_EQ(RoughDuration(Duration(0)), "0 s");
  EXPECT_EQ(RoughDuration(Duration(999)), "999 ns");
  EXPECT_EQ(RoughDuration(milliseconds(1500)), "1.50 s");
  EXPECT_EQ(RoughDuration(minutes(90)), "1.50 h");
  EXPECT_EQ(RoughDuration(Duration(12'345'678)), "12.3 ms");
}

}  // namespace
}  // namespace penstock
