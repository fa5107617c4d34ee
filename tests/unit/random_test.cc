#include "common/base/random.h"

#include <gtest/gtest.h>

#include <set>

namespace penstock {
namespace {

TEST(Random, IncarnationsAreNeverZeroAndDoNotRepeat) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t value = NewIncarnation();
    EXPECT_NE(value, 0u);
    EXPECT_TRUE(seen.insert(value).second);
  }
}

TEST(Random, TokensAreHexOfTheAskedLengthAndDoNotRepeat) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string token = RandomToken();
    EXPECT_EQ(token.size(), 32u);
    EXPECT_EQ(token.find_first_not_of("0123456789abcdef"), std::string::npos);
    EXPECT_TRUE(seen.insert(token).second);
  }
  EXPECT_EQ(RandomToken(3).size(), 6u);
  EXPECT_EQ(RandomToken(0), "");
}

TEST(Random, EveryByteIsFilled) {
  // Each of 1,000 bytes is nonzero in at least one of 20 fills, but for a chance of 10^-45.
  std::vector<std::byte> bytes(1000), any(1000);
  for (int i = 0; i < 20; ++i) {
    RandomBytes(bytes);
    for (size_t j = 0; j < bytes.size(); ++j) any[j] |= bytes[j];
  }
  for (const std::byte b : any) EXPECT_NE(b, std::byte{0});
}

}  // namespace
}  // namespace penstock
