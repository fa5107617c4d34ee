// LruPolicy: the order in which chunks are proposed, and who is never proposed.

#include <gtest/gtest.h>

#include <deque>

#include "server/daemon/store/lru_policy.h"
#include "tests/unit/store_testing.h"

namespace penstock {
namespace {

class StoreLruPolicy : public testing::Test {
 protected:
  RetentionNode& Admit(uint64_t key, std::optional<uint64_t> parent = std::nullopt) {
    RetentionNode& node = nodes_.emplace_back();
    node.key = TestKey(key);
    if (parent) node.parent = TestKey(*parent);
    node.arena_bytes = 1;
    node.last_use = clock_.Draw(1, 0);
    policy_.Admit(node);
    return node;
  }
  void Touch(RetentionNode& node) { policy_.Touch(node, clock_.Draw(1, 0)); }

  // Proposes up to `count` and tells their keys; "!" when the policy says that this is all.
  std::vector<ChunkKey> Propose(size_t count, bool* exhausted = nullptr) {
    const auto victims = policy_.Propose({count, 0, 1000});
    std::vector<ChunkKey> keys;
    for (RetentionNode* node : victims.nodes) {
      EXPECT_EQ(node->refs.load(), 2u);  // One is ours.
      node->refs.fetch_sub(1);
      keys.push_back(node->key);
    }
    if (exhausted != nullptr) *exhausted = victims.exhausted;
    return keys;
  }
  static std::vector<ChunkKey> Keys(const std::vector<uint64_t>& numbers) {
    std::vector<ChunkKey> keys;
    for (const uint64_t number : numbers) keys.push_back(TestKey(number));
    return keys;
  }

  UseClock clock_;
  LruPolicy policy_{clock_};
  std::deque<RetentionNode> nodes_;
};

TEST_F(StoreLruPolicy, ProposesTheLeastRecentlyUsedFirst) {
  RetentionNode& one = Admit(1);
  Admit(2);
  Admit(3);
  Touch(one);
  EXPECT_EQ(Propose(3), Keys({2, 3, 1}));
}

TEST_F(StoreLruPolicy, ProposesNoChunkBeforeThoseThatNeedIt) {
  Admit(1);
  Admit(2, 1);
  Admit(3, 2);
  EXPECT_EQ(Propose(3), Keys({3, 2, 1}));
}

TEST_F(StoreLruPolicy, KnowsChildrenThatCameBeforeTheirParent) {
  Admit(3, 2);
  Admit(2, 1);
  Admit(1);
  EXPECT_EQ(policy_.Children(TestKey(1)), 1u);
  EXPECT_EQ(Propose(3), Keys({3, 2, 1}));
  EXPECT_EQ(policy_.Children(TestKey(1)), 0u);
}

TEST_F(StoreLruPolicy, ASharedTrunkStaysUntilItsLastBranchIsGone) {
  RetentionNode& trunk = Admit(1);
  Admit(2, 1);
  RetentionNode& branch = Admit(3, 1);
  EXPECT_EQ(policy_.Children(TestKey(1)), 2u);
  Touch(branch);
  EXPECT_EQ(Propose(1), Keys({2}));
  policy_.Forget(branch);
  Touch(trunk);
  EXPECT_EQ(Propose(1), Keys({1}));
}

TEST_F(StoreLruPolicy, TouchingAChainFromTheHeadKeepsTheHeadLongest) {
  // Three chunks that do not know of each other: only the order of use tells.
  RetentionNode& a = Admit(1);
  RetentionNode& b = Admit(2);
  RetentionNode& c = Admit(3);
  const uint64_t newest = clock_.Draw(3, 0);
  policy_.Touch(a, newest);
  policy_.Touch(b, newest - 1);
  policy_.Touch(c, newest - 2);
  EXPECT_EQ(Propose(3), Keys({3, 2, 1}));
}

TEST_F(StoreLruPolicy, WhatIsHeldIsNeverProposedAndComesBackWhenReleased) {
  RetentionNode& one = Admit(1);
  Admit(2);
  one.holds = 1;
  one.refs = 2;
  bool exhausted = false;
  EXPECT_EQ(Propose(2, &exhausted), Keys({2}));
  EXPECT_TRUE(exhausted);
  EXPECT_EQ(Propose(1, &exhausted), Keys({}));
  EXPECT_TRUE(exhausted);
  one.refs = 1;
  one.holds = 0;
  policy_.Released(one);
  EXPECT_EQ(Propose(1), Keys({1}));
}

TEST_F(StoreLruPolicy, WhatIsInUseIsPassedOverAndExhaustionIsTold) {
  RetentionNode& one = Admit(1);
  RetentionNode& two = Admit(2);
  one.refs = 2;
  two.refs = 2;
  bool exhausted = false;
  EXPECT_EQ(Propose(1, &exhausted), Keys({}));
  EXPECT_TRUE(exhausted);
  two.refs = 1;
  EXPECT_EQ(Propose(1, &exhausted), Keys({2}));
  EXPECT_FALSE(exhausted);
  one.refs = 1;
  EXPECT_EQ(Propose(1), Keys({1}));
}

TEST_F(StoreLruPolicy, AHeldTailProtectsItsChainWhileAnythingElseIsThere) {
  Admit(1);
  RetentionNode& tail = Admit(2, 1);
  Admit(3);
  tail.holds = 1;
  tail.refs = 2;
  EXPECT_EQ(Propose(1), Keys({3}));
  // And not beyond: else one pin could make a whole chain unevictable.
  EXPECT_EQ(Propose(1), Keys({1}));
  tail.refs = 1;
  tail.holds = 0;
  policy_.Released(tail);
  EXPECT_EQ(Propose(1), Keys({2}));
}

TEST_F(StoreLruPolicy, ParentsInACircleAreStillEvictable) {
  Admit(1, 2);
  Admit(2, 1);
  EXPECT_EQ(Propose(2).size(), 2u);
}

TEST_F(StoreLruPolicy, AParkedChunkFindsItsPlaceByTheChildrenItHasThen) {
  RetentionNode& one = Admit(1);
  one.holds = 1;
  one.refs = 2;
  EXPECT_EQ(Propose(1), Keys({}));  // Parks it.
  RetentionNode& child = Admit(2, 1);
  one.refs = 1;
  one.holds = 0;
  policy_.Released(one);
  EXPECT_EQ(Propose(2), Keys({2, 1}));
  (void)child;
}

TEST_F(StoreLruPolicy, ForgettingTwiceOrUnknownIsNothing) {
  RetentionNode& one = Admit(1);
  policy_.Forget(one);
  policy_.Forget(one);
  RetentionNode stranger;
  stranger.key = TestKey(1);
  policy_.Forget(stranger);
  EXPECT_EQ(Propose(1), Keys({}));
}

TEST_F(StoreLruPolicy, StopsAtTheGoal) {
  for (uint64_t key = 0; key < 10; ++key) Admit(key);
  EXPECT_EQ(Propose(4).size(), 4u);
  EXPECT_EQ(policy_.Propose({100, 0, 3}).nodes.size(), 3u);
}

TEST_F(StoreLruPolicy, ManyTouchesCostBoundedWorkAnEviction) {
  for (uint64_t key = 0; key < 20'000; ++key) Admit(key);
  for (RetentionNode& node : nodes_) Touch(node);
  // Each call corrects a bounded part of the order; together they get there, in order.
  std::vector<ChunkKey> first;
  int calls = 0;
  for (; first.empty() && calls < 100; ++calls) first = Propose(1);
  EXPECT_EQ(first, Keys({0}));
  EXPECT_GT(calls, 1);
  EXPECT_LE(calls, 10);
}

}  // namespace
}  // namespace penstock
