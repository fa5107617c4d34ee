// The values of the bench recognise every kind of wrong bytes: the oracle is only as good as this.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "client/cli/bench/growth.h"
#include "client/cli/bench/latency.h"
#include "client/cli/self_describing.h"

namespace penstock {
namespace {

using Kind = ValueVerdict::Kind;
using Bytes = std::vector<std::byte>;

Bytes Make(uint64_t key, uint64_t version, size_t bytes) {
  Bytes value(bytes);
  FillValue(key, version, value);
  return value;
}
Kind Check(uint64_t key, const Bytes& bytes) { return CheckValue(key, bytes).kind; }

TEST(SelfDescribing, WholeValuesOfAnyLengthPass) {
  for (const size_t bytes : {64, 65, 127, 128, 1'000, 4'096, 100'001}) {
    const ValueVerdict verdict = CheckValue(7, Make(7, 42, bytes));
    EXPECT_EQ(verdict.kind, Kind::kOk) << bytes;
    EXPECT_EQ(verdict.version, 42u);
  }
}

TEST(SelfDescribing, EverySingleBitCounts) {
  const Bytes value = Make(7, 42, 200);
  for (size_t bit = 0; bit < value.size() * 8; ++bit) {
    Bytes bad = value;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(Check(7, bad), Kind::kOk) << bit;
  }
}

TEST(SelfDescribing, TheKindOfWrongIsNamed) {
  const Bytes value = Make(7, 42, 1'000);
  EXPECT_EQ(Check(8, value), Kind::kWrongKey);
  EXPECT_EQ(Check(7, Bytes(1'000, std::byte{0})), Kind::kGarbage);
  EXPECT_EQ(Check(7, Bytes(1'000, std::byte{0xA5})), Kind::kGarbage);
  EXPECT_EQ(Check(7, Bytes()), Kind::kGarbage);
  EXPECT_EQ(Check(7, Bytes(value.begin(), value.begin() + 640)), Kind::kShort);
  EXPECT_EQ(Check(7, Bytes(value.begin(), value.begin() + 700)), Kind::kShort);
  Bytes longer = value;
  longer.resize(1'100);
  EXPECT_EQ(Check(7, longer), Kind::kGarbage);
  // The head of one version and the tail of another.
  Bytes mixed = value;
  const Bytes other = Make(7, 43, 1'000);
  std::copy(other.begin() + 512, other.end(), mixed.begin() + 512);
  const ValueVerdict torn = CheckValue(7, mixed);
  EXPECT_EQ(torn.kind, Kind::kTorn);
  EXPECT_EQ(torn.bad_line, 8u);
  // Lines in the wrong place, and a line of another key.
  Bytes swapped = value;
  std::swap_ranges(swapped.begin() + 64, swapped.begin() + 128, swapped.begin() + 128);
  EXPECT_EQ(Check(7, swapped), Kind::kTorn);
  Bytes foreign = value;
  const Bytes theirs = Make(9, 42, 1'000);
  std::copy(theirs.begin() + 640, theirs.begin() + 704, foreign.begin() + 640);
  EXPECT_EQ(Check(7, foreign), Kind::kWrongKey);
}

TEST(Latency, FractionsAreRightToAboutAPercent) {
  cli::Latency latency;
  for (int i = 1; i <= 10'000; ++i) latency.Add(std::chrono::microseconds(i));
  EXPECT_EQ(latency.count(), 10'000u);
  EXPECT_NEAR(latency.Micros(0.5), 5'000, 100);
  EXPECT_NEAR(latency.Micros(0.99), 9'900, 200);
  EXPECT_NEAR(latency.Micros(0.999), 9'990, 200);
  cli::Latency small, sum;
  small.Add(std::chrono::nanoseconds(5));
  sum.Add(small);
  sum.Add(std::chrono::nanoseconds(-1));
  EXPECT_EQ(sum.count(), 2u);
  EXPECT_LE(sum.Micros(1.0), 0.007);
  EXPECT_EQ(cli::Latency().Micros(0.5), 0);
  sum.Add(std::chrono::hours(24));
  EXPECT_GT(sum.Micros(1.0), 86'000e6);
}

TEST(Growth, TheLineIsFittedToTheSecondHalf) {
  cli::Growth growth;
  for (int x = 0; x < 100; ++x) growth.Sample(x, x < 50 ? 1'000 * x : 50'000 + 10 * (x - 50), 7);
  EXPECT_NEAR(growth.Memory().slope, 10, 0.01);
  EXPECT_EQ(growth.Memory().last, 50'490u);
  EXPECT_EQ(growth.Descriptors().slope, 0);
  EXPECT_EQ(growth.Descriptors().most, 7u);
  cli::Growth live;
  live.Sample(0);
  EXPECT_GT(live.Memory().last, 1'000'000u);
  EXPECT_GE(live.Descriptors().last, 3u);
}

}  // namespace
}  // namespace penstock
