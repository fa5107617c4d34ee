#include "tests/unit/daemon/serving_fixture.h"

namespace penstock {
namespace {

using testing::Each;
using testing::ElementsAre;

// Data of eager stores that overtakes its request.
class ServingEarlyTest : public ServingTest {
 protected:
  Storing Eager(const std::vector<std::pair<std::string, std::string>>& chunks) const {
    Storing storing(ns());
    for (const auto& [name, bytes] : chunks) storing.Add(Key(name), bytes);
    storing.request.eager = true;
    return storing;
  }
};

TEST_F(ServingEarlyTest, DataThatComesBeforeItsRequestIsNotLost) {
  EXPECT_TRUE(Data(7, 1, 0, "bbb"));
  EXPECT_TRUE(Data(7, 0, 2, "aa"));
  Send(MessageType::kStore, 7, Eager({{"a", "aaaa"}, {"b", "bbb"}}).Encode());
  EXPECT_TRUE(Data(7, 0, 0, "aa"));
  EXPECT_THAT(TakeStatuses(7), Each(Code::kOk));
  EXPECT_EQ(serving_->counters.data_discarded.value(), 0u);
  ExpectIdle();
}

TEST_F(ServingEarlyTest, AFrameMayStillBeLandingWhenItsRequestComes) {
  EXPECT_TRUE(Data(7, 0, 0, "aaaa", /*land=*/false));
  Send(MessageType::kStore, 7, Eager({{"a", "aaaa"}}).Encode());
  EXPECT_EQ(session_->waiting_messages(), 0u);
  EXPECT_FALSE(Data(7, 0, 0, "aaaa")) << "the same bytes a second time";
  Land(7, 0, 0, 4);
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kInvalidArgument));
  ExpectIdle();

  EXPECT_TRUE(Data(8, 0, 0, "aaaa", /*land=*/false));
  Send(MessageType::kStore, 8, Eager({{"a", "aaaa"}}).Encode());
  Land(8, 0, 0, 4);
  EXPECT_THAT(TakeStatuses(8), ElementsAre(Code::kOk));
  ExpectIdle();
}

TEST_F(ServingEarlyTest, WrongEarlyDataFailsItsItemOnly) {
  EXPECT_TRUE(Data(7, 0, 100, "aaaa"));
  EXPECT_TRUE(Data(7, 5, 0, "aaaa"));
  EXPECT_TRUE(Data(7, 1, 0, "bbb"));
  Send(MessageType::kStore, 7, Eager({{"a", "aaaa"}, {"b", "bbb"}}).Encode());
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kInvalidArgument, Code::kOk));
  ExpectIdle();
}

TEST_F(ServingEarlyTest, ARequestWhoseEarlyDataFoundNoRoomFailsAtOnce) {
  const std::string large = Pattern(60000, 1);
  size_t kept = 0;
  while (Data(7 + kept, 0, 0, large)) ++kept;
  EXPECT_GE(kept, 16u);
  EXPECT_LE(kept, 18u);
  Send(MessageType::kStore, 7 + kept, Eager({{"lost", large}}).Encode());
  EXPECT_THAT(TakeStatuses(7 + kept), ElementsAre(Code::kBusy));
  // Ids go up, so the older data belongs to nothing now, and there is room again.
  EXPECT_TRUE(Data(100, 0, 0, large));
  ExpectIdle();
}

TEST_F(ServingEarlyTest, ARefusedItemTakesNothingFromTheOthersStillOnTheirWay) {
  Put(Key("a"), "aaaa");
  EXPECT_TRUE(Data(7, 0, 0, "aaaa", /*land=*/false));
  EXPECT_TRUE(Data(7, 1, 0, "bbb", /*land=*/false));
  Send(MessageType::kStore, 7, Eager({{"a", "aaaa"}, {"b", "bbb"}}).Encode());
  Land(7, 0, 0, 4);
  Land(7, 1, 0, 3);
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kAlreadyExists, Code::kOk));
  ExpectIdle();
}

TEST_F(ServingEarlyTest, AFrameThatOverlapsAnotherOnItsWayFailsTheItemOnceBothHaveLanded) {
  EXPECT_TRUE(Data(7, 0, 0, "aaa", /*land=*/false));
  EXPECT_TRUE(Data(7, 0, 2, "aa", /*land=*/false));
  Send(MessageType::kStore, 7, Eager({{"a", "aaaa"}}).Encode());
  Land(7, 0, 2, 2);
  EXPECT_EQ(session_->waiting_messages(), 0u) << "the wire still writes into the item's memory";
  Land(7, 0, 0, 3);
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kInvalidArgument));
  ExpectIdle();
}

TEST_F(ServingEarlyTest, AFailureThatOvertakesItsRequestIsNotForgotten) {
  const auto status = static_cast<uint16_t>(Code::kBadBuffer);
  On([&, id = IdOf(7)] { served_->OnDataFailed(id, {.item = 1, .status = status}); });
  Send(MessageType::kStore, 7, Eager({{"a", "aaaa"}, {"b", "bbbb"}}).Encode());
  EXPECT_TRUE(Data(7, 0, 0, "aaaa"));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kOk, Code::kBadBuffer));
  ExpectIdle();
}

TEST_F(ServingEarlyTest, AllSessionsTogetherKeepABoundedAmount) {
  ServingLimits limits;
  limits.early_bytes = 10;
  Start(limits);
  ScriptedSession other_session(*loop_);
  std::unique_ptr<ServedSession> other;
  On([&] {
    other = std::make_unique<ServedSession>(other_session, *serving_, 0, /*internal=*/false);
    Pieces pieces;
    EXPECT_TRUE(other->Locate(1, {.item = 0, .length = 8}, pieces));
  });
  EXPECT_FALSE(Data(7, 0, 0, "aaaa"));
  Send(MessageType::kStore, 7, Eager({{"a", "aaaa"}}).Encode());
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kBusy));
  On([&] { other.reset(); });
  EXPECT_EQ(serving_->early.bytes(), 0u);
  EXPECT_TRUE(Data(8, 0, 0, "aaaa"));
}

TEST_F(ServingEarlyTest, DataOfOldRequestsIsNeverKept) {
  Send(MessageType::kStore, 50, Eager({{"a", "aaaa"}}).Encode());
  EXPECT_FALSE(DataWithId(IdOf(50) - 1, 0, 0, "bbb"));
  EXPECT_TRUE(Data(50, 0, 0, "aaaa"));
  EXPECT_THAT(TakeStatuses(50), ElementsAre(Code::kOk));
  EXPECT_FALSE(Data(50, 0, 0, "aaaa"));
}

TEST_F(ServingEarlyTest, EarlyDataOfARefusedRequestIsForgotten) {
  EXPECT_TRUE(Data(7, 0, 0, "aaaa"));
  EXPECT_TRUE(Data(7, 1, 0, "aaaa", /*land=*/false));
  Send(MessageType::kStore, 7, std::vector<std::byte>(3));
  EXPECT_EQ(TakeReply(7).head.status, Code::kCorruptMessage);
  Land(7, 1, 0, 4);
  EXPECT_FALSE(Data(7, 0, 0, "aaaa"));
  ExpectIdle();
}

TEST_F(ServingEarlyTest, AnAbandonedRequestLetsGoOfItsEarlyFrames) {
  session_->finish_abandons_at_once = false;
  EXPECT_TRUE(Data(7, 0, 0, "aa", /*land=*/false));
  Send(MessageType::kStore, 7, Eager({{"a", "aaaa"}}).Encode());
  Send(MessageType::kCancel, 7, {});
  On([&] { session_->held_abandons.front()(); });
  EXPECT_EQ(TakeReply(7).head.status, Code::kCancelled);
  ExpectIdle();
}

TEST(EarlyData, KeepsWithinItsBytesAndGivesThemBack) {
  EarlyBudget all(1000);
  EarlyData early(100, all);
  Pieces pieces;
  EXPECT_TRUE(early.Locate(1, {.item = 0, .length = 60}, pieces));
  EXPECT_FALSE(early.Locate(1, {.item = 1, .length = 41}, pieces));
  EXPECT_TRUE(early.Locate(2, {.item = 0, .length = 40}, pieces));
  EXPECT_EQ(early.bytes(), 100u);
  EXPECT_EQ(all.bytes(), 100u);
  EXPECT_FALSE(early.OnData(2, {.item = 0, .length = 40}, Status::Ok()).has_value());
  const EarlyData::Claimed two = early.Claim(2);
  ASSERT_EQ(two.landed.size(), 1u);
  EXPECT_FALSE(two.lost);
  early.Forget(2);
  EXPECT_EQ(early.bytes(), 60u) << "the wire still writes into it";
  EXPECT_TRUE(early.Holds(1, {.item = 0, .length = 60}));
  EXPECT_FALSE(early.OnData(1, {.item = 0, .length = 60}, Status::Ok()).has_value());
  EXPECT_EQ(early.bytes(), 0u);
  EXPECT_EQ(all.bytes(), 0u);
  EXPECT_EQ(early.frames(), 0u);
}

TEST(EarlyData, FailuresAreRememberedInABoundedNumberToo) {
  EarlyBudget all(1000);
  EarlyData early(1000, all);
  const auto fail = [&](uint64_t id) {
    for (uint32_t i = 0; i < 2 * EarlyData::kMaxFrames; ++i) early.OnDataFailed(id, {.item = i});
  };
  fail(1);
  EXPECT_TRUE(early.Claim(2).failed.empty());
  const EarlyData::Claimed one = early.Claim(1);
  EXPECT_EQ(one.failed.size(), EarlyData::kMaxFrames);
  EXPECT_TRUE(one.lost);
  fail(3);
  early.Forget(3);
  fail(4);
  EXPECT_EQ(early.Claim(4).failed.size(), EarlyData::kMaxFrames) << "there is room again";
}

TEST(EarlyData, FramesWithoutRoomAreRememberedInABoundedNumber) {
  EarlyBudget all(1000);
  EarlyData early(0, all);
  Pieces pieces;
  for (uint64_t id = 1; id <= 2 * EarlyData::kMaxFrames; ++id) {
    EXPECT_FALSE(early.Locate(id, {.length = 1}, pieces));
  }
  EXPECT_TRUE(early.Claim(1).lost);
  EXPECT_FALSE(early.Claim(2 * EarlyData::kMaxFrames).lost);
}

}  // namespace
}  // namespace penstock
