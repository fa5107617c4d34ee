#include "tests/unit/daemon/serving_fixture.h"

namespace penstock {
namespace {

using testing::Each;
using testing::ElementsAre;

class ServingStoreTest : public ServingTest {
 protected:
  uint64_t Failed(Code code) const { return serving_->counters.store_failed[code].value(); }
  uint64_t Refused(Code code) const { return serving_->counters.store_refused[code].value(); }
};

TEST_F(ServingStoreTest, AGrantedChunkIsCommittedOnceItsLastByteIsThere) {
  const std::string bytes = Pattern(10000, 1);
  Send(MessageType::kStore, 7, Storing(ns()).Add(Key("a"), bytes).Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk));
  EXPECT_TRUE(Data(7, 0, 5000, std::string_view(bytes).substr(5000)));
  EXPECT_EQ(store_->Stats().chunks, 0u);
  EXPECT_EQ(session_->waiting_messages(), 0u);
  EXPECT_TRUE(Data(7, 0, 0, std::string_view(bytes).substr(0, 5000)));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kOk));
  EXPECT_EQ(store_->Stats().chunks, 1u);
  EXPECT_EQ(serving_->counters.store_committed_bytes.value(), 10000u);
  ExpectIdle();
}

TEST_F(ServingStoreTest, AnEagerStoreHasNoGrant) {
  Storing storing(ns());
  storing.Add(Key("a"), "abc").Add(Key("b"), "defg");
  storing.request.eager = true;
  Send(MessageType::kStore, 7, storing.Encode());
  EXPECT_TRUE(Data(7, 1, 0, "defg"));
  EXPECT_TRUE(Data(7, 0, 0, "abc"));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kOk, Code::kOk));
  ExpectIdle();
}

TEST_F(ServingStoreTest, AnEagerStoreBeyondTheLimitIsRefusedAsAWhole) {
  Storing storing(ns());
  storing.Add(Key("a"), Pattern(40000, 1)).Add(Key("b"), Pattern(40000, 2));
  storing.request.eager = true;
  Send(MessageType::kStore, 7, storing.Encode());
  EXPECT_EQ(TakeReply(7).head.status, Code::kTooLarge);
  EXPECT_FALSE(Data(7, 0, 0, "late"));
  EXPECT_EQ(Refused(Code::kTooLarge), 2u);
  EXPECT_EQ(serving_->counters.data_discarded.value(), 1u);
  ExpectIdle();
}

TEST_F(ServingStoreTest, EmptyChunksNeedNoData) {
  Send(MessageType::kStore, 7, Storing(ns()).Add(Key("empty"), "").Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kOk));
  EXPECT_EQ(store_->Stats().chunks, 1u);
  ExpectIdle();
}

TEST_F(ServingStoreTest, ARequestWithoutItemsIsAnsweredAtOnce) {
  Send(MessageType::kStore, 7, Storing(ns()).Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre());
  EXPECT_THAT(TakeStatuses(7), ElementsAre());
  ExpectIdle();
}

TEST_F(ServingStoreTest, BytesThatComeTwiceFailTheirItemAndNoOther) {
  Send(MessageType::kStore, 7,
       Storing(ns()).Add(Key("a"), "0123456789").Add(Key("b"), "abcdefghij").Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk, Code::kOk));
  EXPECT_TRUE(Data(7, 0, 0, "01234"));
  EXPECT_FALSE(Data(7, 0, 4, "45678"));
  EXPECT_FALSE(Data(7, 0, 5, "56789"));  // Right, but the item is lost already.
  EXPECT_TRUE(Data(7, 1, 0, "abcdefghij"));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kInvalidArgument, Code::kOk));
  EXPECT_EQ(Failed(Code::kInvalidArgument), 1u);
  EXPECT_EQ(store_->Stats().chunks, 1u);
  ExpectIdle();
}

TEST_F(ServingStoreTest, BytesBeyondTheEndFailTheirItem) {
  for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, std::string>>{
           {8, "890"}, {10, "x"}, {UINT64_MAX, "x"}, {UINT64_MAX - 1, "xyz"}}) {
    const uint64_t id = next_name_++;
    Send(MessageType::kStore, id, Storing(ns()).Add(Key("a"), "0123456789").Encode());
    EXPECT_THAT(TakeGrant(id), ElementsAre(Code::kOk));
    EXPECT_FALSE(Data(id, 0, offset, bytes));
    EXPECT_THAT(TakeStatuses(id), ElementsAre(Code::kInvalidArgument));
  }
  EXPECT_EQ(store_->Stats().chunks, 0u);
  ExpectIdle();
}

TEST_F(ServingStoreTest, DataForUnknownRequestsAndItemsIsDiscardedAndCounted) {
  Send(MessageType::kStore, 7, Storing(ns()).Add(Key("a"), "abc").Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk));
  EXPECT_FALSE(DataWithId(IdOf(7) - 1, 0, 0, "abc"));
  EXPECT_FALSE(Data(7, 1, 0, "abc"));
  EXPECT_TRUE(Data(7, 0, 0, "abc"));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kOk));
  EXPECT_FALSE(Data(7, 0, 0, "abc"));
  EXPECT_EQ(serving_->counters.data_discarded.value(), 3u);
  EXPECT_EQ(serving_->counters.data_discarded_bytes.value(), 9u);
}

TEST_F(ServingStoreTest, SpaceIsNeverGivenBackUnderAFrameThatIsStillLanding) {
  Send(MessageType::kStore, 7, Storing(ns()).Add(Key("a"), "0123456789").Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk));
  EXPECT_TRUE(Data(7, 0, 0, "01234", /*land=*/false));
  EXPECT_FALSE(Data(7, 0, 0, "0"));
  EXPECT_EQ(store_->Stats().pending_chunks, 1u);
  EXPECT_EQ(session_->waiting_messages(), 0u);
  Land(7, 0, 0, 5);
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kInvalidArgument));
  ExpectIdle();
}

TEST_F(ServingStoreTest, AFrameThatFailsToLandFailsItsItem) {
  Send(MessageType::kStore, 7, Storing(ns()).Add(Key("a"), "0123456789").Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk));
  EXPECT_TRUE(Data(7, 0, 0, "01234", /*land=*/false));
  Land(7, 0, 0, 5, Status(Code::kBadBuffer));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kBadBuffer));
  ExpectIdle();
}

TEST_F(ServingStoreTest, AnItemThatTheClientCannotDeliverFailsWithItsReason) {
  Send(MessageType::kStore, 7,
       Storing(ns()).Add(Key("a"), "0123456789").Add(Key("b"), "x").Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk, Code::kOk));
  On([&, id = IdOf(7)] {
    served_->OnDataFailed(id, {.item = 0, .status = static_cast<uint16_t>(Code::kBadBuffer)});
    served_->OnDataFailed(id, {.item = 17, .status = static_cast<uint16_t>(Code::kBadBuffer)});
  });
  EXPECT_TRUE(Data(7, 1, 0, "x"));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kBadBuffer, Code::kOk));
  ExpectIdle();
}

TEST_F(ServingStoreTest, WrongBytesAreNotCommitted) {
  Send(MessageType::kStore, 7, Storing(ns()).Add(Key("a"), "0123456789").Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk));
  EXPECT_TRUE(Data(7, 0, 0, "0123456780"));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kChecksumMismatch));
  EXPECT_EQ(Failed(Code::kChecksumMismatch), 1u);
  EXPECT_EQ(store_->Stats().chunks, 0u);
  ExpectIdle();
}

TEST_F(ServingStoreTest, LargeChunksAreCheckedBesideTheDataThread) {
  const std::string bytes = Pattern(3u << 20, 5);
  Send(MessageType::kStore, 7,
       Storing(ns()).Add(Key("a"), bytes).Add(Key("b"), bytes, /*sum=*/1).Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk, Code::kOk));
  EXPECT_TRUE(Data(7, 0, 0, bytes));
  EXPECT_TRUE(Data(7, 1, 0, bytes));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kOk, Code::kChecksumMismatch));
  ExpectIdle();
}

TEST_F(ServingStoreTest, ACommitUnderWayOutlivesItsSessionAndIsCounted) {
  const std::string bytes = Pattern(8u << 20, 6);
  Send(MessageType::kStore, 7, Storing(ns()).Add(Key("a"), bytes).Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk));
  On([&, id = IdOf(7)] {  // The last frame and the end of the session in one go.
    const DataHeader header{.item = 0, .offset = 0, .length = bytes.size()};
    Pieces pieces;
    ASSERT_TRUE(served_->Locate(id, header, pieces));
    size_t copied = 0;
    for (const iovec& piece : pieces) {
      bytes.copy(static_cast<char*>(piece.iov_base), piece.iov_len, copied);
      copied += piece.iov_len;
    }
    served_->OnData(id, header, Status::Ok());
    served_->OnClosed(Status(Code::kDisconnected));
    served_.reset();
  });
  workers_->Stop();
  EXPECT_EQ(serving_->counters.store_committed.value(), 1u);
  EXPECT_EQ(serving_->counters.StoreItems(), 1u);
  ExpectIdle();
}

TEST_F(ServingStoreTest, TheDeadlineAbandonsBeforeSpaceIsGivenBack) {
  ServingLimits limits;
  limits.store_grace = std::chrono::milliseconds(1);
  Start(limits);
  session_->finish_abandons_at_once = false;
  Storing storing(ns());
  storing.Add(Key("a"), "0123456789").Add(Key("b"), "x");
  storing.request.deadline_ms = 1;
  Send(MessageType::kStore, 7, storing.Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk, Code::kOk));
  ASSERT_TRUE(session_->WaitAbandons(1));
  EXPECT_EQ(store_->Stats().pending_chunks, 2u);
  EXPECT_FALSE(Data(7, 0, 0, "01234"));  // The zombie's late bytes.
  EXPECT_EQ(session_->waiting_messages(), 0u);
  On([&] { session_->held_abandons.front()(); });
  EXPECT_THAT(TakeStatuses(7), Each(Code::kDeadlineExceeded));
  EXPECT_EQ(Failed(Code::kDeadlineExceeded), 2u);
  ExpectIdle();
}

TEST_F(ServingStoreTest, WhatWasCommittedBeforeTheDeadlineStaysCommitted) {
  ServingLimits limits;
  limits.store_grace = std::chrono::milliseconds(1);
  Start(limits);
  Storing storing(ns());
  storing.Add(Key("a"), "0123456789").Add(Key("b"), "x");
  storing.request.deadline_ms = 300;
  Send(MessageType::kStore, 7, storing.Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk, Code::kOk));
  EXPECT_TRUE(Data(7, 1, 0, "x"));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kDeadlineExceeded, Code::kOk));
  EXPECT_EQ(store_->Stats().chunks, 1u);
  ExpectIdle();
}

TEST_F(ServingStoreTest, ACancelledStoreIsAnsweredOnceNothingCanLandAnyMore) {
  session_->finish_abandons_at_once = false;
  Send(MessageType::kStore, 7, Storing(ns()).Add(Key("a"), "0123456789").Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk));
  EXPECT_TRUE(Data(7, 0, 0, "012", /*land=*/false));
  Send(MessageType::kCancel, 7, {});
  EXPECT_EQ(session_->waiting_messages(), 0u);
  EXPECT_EQ(store_->Stats().pending_chunks, 1u);
  Send(MessageType::kCancel, 7, {});  // Twice is once.
  On([&] { session_->held_abandons.front()(); });
  EXPECT_EQ(TakeReply(7).head.status, Code::kCancelled);
  EXPECT_EQ(session_->abandoned.size(), 1u);
  EXPECT_EQ(Failed(Code::kCancelled), 1u);
  ExpectIdle();
}

TEST_F(ServingStoreTest, TheEndOfTheSessionGivesEverythingBack) {
  Send(MessageType::kStore, 7,
       Storing(ns()).Add(Key("a"), "0123456789").Add(Key("b"), "x").Encode());
  EXPECT_TRUE(Data(7, 0, 0, "01234", /*land=*/false));
  CloseSession();
  EXPECT_EQ(Failed(Code::kDisconnected), 2u);
  EXPECT_EQ(store_->Stats().used_bytes, 0u);
  EXPECT_EQ(serving_->counters.sessions.value(), 0);
  EXPECT_EQ(serving_->directory.size(), 0u);
  ExpectIdle();
}

TEST_F(ServingStoreTest, AnExistingChunkIsFinalAtTheGrant) {
  Put(Key("a"), "first");
  Send(MessageType::kStore, 7, Storing(ns()).Add(Key("a"), "second").Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kAlreadyExists));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kAlreadyExists));
  EXPECT_EQ(serving_->counters.store_exists.value(), 1u);
  ExpectIdle();
}

TEST_F(ServingStoreTest, BadItemsAreRefusedOneByOne) {
  Storing storing(ns());
  storing.Add(Key("lies"), "abc").Add(Key("garbage"), "abc").Add(Key("good"), "abc");
  storing.request.items[0].payload_bytes = 4;  // The manifest says 3.
  storing.request.items[1].manifest = AsBytes("no manifest at all");
  Send(MessageType::kStore, 7, storing.Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kInvalidArgument, Code::kCorruptMessage, Code::kOk));
  EXPECT_TRUE(Data(7, 2, 0, "abc"));
  EXPECT_THAT(TakeStatuses(7),
              ElementsAre(Code::kInvalidArgument, Code::kCorruptMessage, Code::kOk));
  EXPECT_EQ(serving_->counters.StoreItems(), 3u);
  ExpectIdle();
}

TEST_F(ServingStoreTest, AnUnopenedNamespaceIsRefused) {
  Fingerprint other = ns();
  other.bytes[0] ^= 1;
  Send(MessageType::kStore, 7, Storing(other).Add(Key("a"), "abc").Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kInvalidArgument));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kInvalidArgument));
}

TEST_F(ServingStoreTest, MoreRequestsThanAgreedAreToldToComeBack) {
  for (uint64_t id = 1; id <= 8; ++id) {
    Send(MessageType::kStore, id, Storing(ns()).Add(Key(std::to_string(id)), "abc").Encode());
    EXPECT_THAT(TakeGrant(id), ElementsAre(Code::kOk));
  }
  Send(MessageType::kStore, 9, Storing(ns()).Add(Key("9"), "abc").Encode());
  const Reply busy = TakeReply(9);
  EXPECT_EQ(busy.head.status, Code::kBusy);
  EXPECT_GT(busy.head.retry_after_ms, 0u);
  EXPECT_EQ(Refused(Code::kBusy), 1u);
  EXPECT_TRUE(Data(1, 0, 0, "abc"));
  EXPECT_THAT(TakeStatuses(1), ElementsAre(Code::kOk));
  Send(MessageType::kStore, 9, Storing(ns()).Add(Key("9"), "abc").Encode());
  EXPECT_THAT(TakeGrant(9), ElementsAre(Code::kOk));
}

TEST_F(ServingStoreTest, TheDaemonsOwnLimitCountsAllSessions) {
  ServingLimits limits;
  limits.max_in_flight = 1;
  Start(limits);
  Send(MessageType::kStore, 7, Storing(ns()).Add(Key("a"), "abc").Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk));
  Send(MessageType::kStore, 8, Storing(ns()).Add(Key("b"), "abc").Encode());
  EXPECT_EQ(TakeReply(8).head.status, Code::kBusy);
}

TEST_F(ServingStoreTest, ARequestIdThatIsNotAboveThoseBeforeEndsTheSession) {
  for (const uint64_t id : {70, 69}) {
    Start({});
    SendWithId(MessageType::kStore, 70, Storing(ns()).Add(Key("a"), "abc").Encode());
    SendWithId(MessageType::kCancel, 69, {});  // No request.
    EXPECT_FALSE(session_->closed_with.has_value());
    SendWithId(MessageType::kStore, id, Storing(ns()).Add(Key("b"), "abc").Encode());
    ASSERT_TRUE(session_->closed_with.has_value()) << id;
    EXPECT_EQ(session_->closed_with->code(), Code::kInvalidArgument);
  }
}

TEST_F(ServingStoreTest, TruncatedRequestsAreAnsweredAndHarmless) {
  const std::vector<std::byte> whole = Storing(ns()).Add(Key("a"), "abc").Encode();
  for (size_t size = 0; size < whole.size(); ++size) {
    const uint64_t id = next_name_++;
    Send(MessageType::kStore, id, {whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)});
    EXPECT_EQ(TakeReply(id).head.status, Code::kCorruptMessage) << size;
  }
  ExpectIdle();
}

TEST_F(ServingStoreTest, ADrainingDaemonFinishesWhatItHasAndTakesNothingNew) {
  Send(MessageType::kStore, 7, Storing(ns()).Add(Key("a"), "abc").Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk));
  serving_->draining = true;
  Send(MessageType::kStore, 8, Storing(ns()).Add(Key("b"), "abc").Encode());
  EXPECT_EQ(TakeReply(8).head.status, Code::kDisconnected);
  EXPECT_FALSE(serving_->in_flight.WaitIdle(Deadline::After(Duration::zero())));
  EXPECT_TRUE(Data(7, 0, 0, "abc"));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kOk));
  EXPECT_TRUE(serving_->in_flight.WaitIdle(Deadline::After(std::chrono::seconds(10))));
}

}  // namespace
}  // namespace penstock
