// LongestPrefix against the definition itself, for all small cases and many random ones.

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "server/daemon/store/prefix_plan.h"

namespace penstock {
namespace {

using Presence = std::vector<std::vector<bool>>;  // [group][chunk]

uint32_t ByDefinition(const std::vector<uint32_t>& windows, uint32_t count, const Presence& there) {
  for (uint32_t n = count;; --n) {
    bool whole = true;
    for (size_t g = 0; g < windows.size(); ++g) {
      for (uint32_t i = FirstNeeded(n, windows[g]); i < n; ++i) whole = whole && there[g][i];
    }
    if (whole) return n;
  }
}

struct Asked {
  uint32_t answer = 0;
  std::map<std::pair<size_t, uint32_t>, int> times;
};

Asked Ask(const std::vector<uint32_t>& windows, uint32_t count, const Presence& there) {
  Asked asked;
  asked.answer = LongestPrefix(windows, count, [&](size_t g, uint32_t i) {
    EXPECT_LT(i, count);
    ++asked.times[{g, i}];
    return there[g][i];
  });
  return asked;
}

TEST(StorePrefixPlan, OneFullGroupIsTheRunFromTheHead) {
  EXPECT_EQ(Ask({0}, 4, {{true, true, false, true}}).answer, 2u);
  EXPECT_EQ(Ask({0}, 4, {{true, true, true, true}}).answer, 4u);
  EXPECT_EQ(Ask({0}, 4, {{false, true, true, true}}).answer, 0u);
  EXPECT_EQ(Ask({0}, 0, {{}}).answer, 0u);
}

TEST(StorePrefixPlan, ASlidingGroupNeedsOnlyItsWindow) {
  EXPECT_EQ(Ask({2}, 4, {{false, false, true, true}}).answer, 4u);
  EXPECT_EQ(Ask({2}, 4, {{false, true, true, false}}).answer, 3u);
  EXPECT_EQ(Ask({2}, 4, {{false, true, false, true}}).answer, 0u);
  EXPECT_EQ(Ask({2}, 4, {{true, false, false, false}}).answer, 1u);  // The window is cut at 0.
  EXPECT_EQ(Ask({9}, 3, {{true, true, true}}).answer, 3u);
}

TEST(StorePrefixPlan, GroupsMustAgreeOnOneLength) {
  // The full group has 4, the sliding one could only end at 2 or 5.
  EXPECT_EQ(
      Ask({0, 2}, 5, {{true, true, true, true, false}, {true, true, false, true, true}}).answer,
      2u);
}

TEST(StorePrefixPlan, AllCasesOfThreeGroupsAndFourChunks) {
  constexpr uint32_t kCount = 4;
  for (uint32_t bits = 0; bits < 1u << (3 * kCount); ++bits) {
    Presence there(3, std::vector<bool>(kCount));
    for (uint32_t i = 0; i < 3 * kCount; ++i) there[i / kCount][i % kCount] = (bits >> i & 1) != 0;
    for (const std::vector<uint32_t>& windows :
         {std::vector<uint32_t>{0, 1, 2}, {0, 2, 3}, {1, 2, 3}, {0, 0, 2}, {2, 0, 1}}) {
      ASSERT_EQ(Ask(windows, kCount, there).answer, ByDefinition(windows, kCount, there)) << bits;
    }
  }
}

TEST(StorePrefixPlan, RandomCasesAskForEachChunkAtMostOnce) {
  std::mt19937_64 rng(1);
  for (int round = 0; round < 3000; ++round) {
    const uint32_t count = rng() % 60;
    std::vector<uint32_t> windows(1 + rng() % 6);
    for (uint32_t& window : windows) window = rng() % 3 == 0 ? 0 : 1 + rng() % 20;
    const uint64_t missing_of_100 = rng() % 30;
    Presence there(windows.size());
    for (auto& group : there) {
      for (uint32_t i = 0; i < count; ++i) group.push_back(rng() % 100 >= missing_of_100);
    }
    const Asked asked = Ask(windows, count, there);
    ASSERT_EQ(asked.answer, ByDefinition(windows, count, there)) << round;
    for (const auto& [where, times] : asked.times) ASSERT_EQ(times, 1) << round;
  }
}

TEST(StorePrefixPlan, AWindowAtTheEndCostsNoMoreThanTheWindow) {
  const uint32_t count = 1000;
  const Presence all(2, std::vector<bool>(count, true));
  const Asked asked = Ask({0, 3}, count, all);
  EXPECT_EQ(asked.answer, count);
  EXPECT_EQ(asked.times.size(), count + 3u);
}

}  // namespace
}  // namespace penstock
