#include "tests/unit/daemon/serving_fixture.h"

namespace penstock {
namespace {

using testing::ElementsAre;

class ServingFetchTest : public ServingTest {
 protected:
  struct FetchAnswer {
    std::vector<Code> statuses;
    std::vector<uint64_t> bytes;
    std::vector<std::vector<std::byte>> manifests;
  };
  FetchAnswer TakeFetch(uint64_t id) {
    const Reply reply = TakeReply(id);
    EXPECT_EQ(reply.head.status, Code::kOk) << reply.head.message;
    FetchAnswer answer;
    const auto decoded = DecodeFetchReply(reply.rest);
    EXPECT_TRUE(decoded.ok());
    if (!decoded.ok()) return answer;
    for (const FetchReply::Item& item : decoded->items) {
      answer.statuses.push_back(item.status);
      answer.bytes.push_back(item.payload_bytes);
      answer.manifests.emplace_back(item.manifest.begin(), item.manifest.end());
    }
    return answer;
  }
  // All bytes sent for one item of a request, put together by offset.
  std::string Received(uint64_t name, uint32_t item) {
    const uint64_t id = IdOf(name);
    std::string all;
    On([&] {
      for (const auto& frame : session_->frames) {
        if (frame.request_id != id || frame.header.item != item) continue;
        EXPECT_EQ(frame.header.length, frame.bytes.size());
        EXPECT_EQ(frame.header.offset, all.size()) << "bytes of an item come in order";
        all += frame.bytes;
      }
    });
    return all;
  }
  // Finishes the oldest frame that is still on its way.
  void FinishOldest(const Status& status = Status::Ok()) {
    On([&] {
      for (size_t i = 0; i < session_->frames.size(); ++i) {
        if (session_->frames[i].done == nullptr) continue;
        const auto done = std::move(session_->frames[i].done);
        session_->frames[i].done = nullptr;
        return done(status);
      }
      FAIL() << "no frame is on its way";
    });
  }
  size_t Frames() {
    size_t count = 0;
    On([&] { count = session_->frames.size(); });
    return count;
  }
};

TEST_F(ServingFetchTest, DeliversWhatWasStoredWithItsManifest) {
  const std::string bytes = Pattern(10000, 1);
  Put(Key("a"), bytes);
  Send(MessageType::kFetch, 7, Fetching({Key("a")}).Encode());
  const FetchAnswer answer = TakeFetch(7);
  EXPECT_THAT(answer.statuses, ElementsAre(Code::kOk));
  EXPECT_THAT(answer.bytes, ElementsAre(10000u));
  EXPECT_EQ(answer.manifests[0],
            Manifest::Plain(10000, ChunkChecksum(Key("a"), AsBytes(bytes))).Encode());
  EXPECT_EQ(Received(7, 0), bytes);
  EXPECT_EQ(serving_->counters.fetch_delivered_bytes.value(), 10000u);
  ExpectIdle();
}

TEST_F(ServingFetchTest, EveryItemHasAStatusOfItsOwn) {
  Put(Key("a"), "aaa");
  Put(Key("c"), "cccc");
  Put(Key("empty"), "");
  FetchRequest request = Fetching({Key("a"), Key("b"), Key("c"), Key("empty")});
  request.items[2].capacity = 3;
  Send(MessageType::kFetch, 7, request.Encode());
  const FetchAnswer answer = TakeFetch(7);
  EXPECT_THAT(answer.statuses,
              ElementsAre(Code::kOk, Code::kMiss, Code::kBufferTooSmall, Code::kOk));
  EXPECT_THAT(answer.bytes, ElementsAre(3u, 0u, 4u, 0u));
  EXPECT_EQ(Received(7, 0), "aaa");
  EXPECT_EQ(Received(7, 2), "");
  const ServingCounters& c = serving_->counters;
  EXPECT_EQ(c.fetch_delivered.value(), 2u);
  EXPECT_EQ(c.fetch_missed.value(), 1u);
  EXPECT_EQ(c.fetch_refused[Code::kBufferTooSmall].value(), 1u);
  EXPECT_EQ(c.FetchItems(), 4u);
  ExpectIdle();
}

TEST_F(ServingFetchTest, AReaderOfAnotherTagOrNamespaceGetsNothing) {
  Put(Key("a"), "aaa");
  FetchRequest request = Fetching({Key("a")});
  request.namespaces[0].bytes[5] ^= 1;
  Send(MessageType::kFetch, 7, request.Encode());
  EXPECT_THAT(TakeFetch(7).statuses, ElementsAre(Code::kMiss));
  EXPECT_EQ(Frames(), 0u);
  ExpectIdle();
}

TEST_F(ServingFetchTest, ASelectionIsServedAsItsBytesAlone) {
  const ChunkKey key = Key("layers");
  Manifest manifest;
  std::string whole;
  for (uint16_t layer = 0; layer < 4; ++layer) {
    const std::string bytes = Pattern(1000u + layer, layer);
    manifest.segments.push_back({.kind = SegmentKind::kKv,
                                 .layer_first = layer,
                                 .layer_count = 1,
                                 .logical_bytes = bytes.size(),
                                 .stored_bytes = bytes.size(),
                                 .checksum = ChunkChecksum(key, AsBytes(bytes))});
    whole += bytes;
  }
  StoreRequest store;
  store.namespaces = {ns()};
  const std::vector<std::byte> encoded = manifest.Encode();
  store.items.push_back({.key = key, .payload_bytes = whole.size(), .manifest = encoded});
  Send(MessageType::kStore, 7, store.Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk));
  ASSERT_TRUE(Data(7, 0, 0, whole));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kOk));

  const std::vector<std::byte> two_layers = Selection::Layers(1, 2).Encode();
  FetchRequest request = Fetching({key}, /*capacity=*/2003);
  request.selection = two_layers;
  Send(MessageType::kFetch, 8, request.Encode());
  EXPECT_THAT(TakeFetch(8).bytes, ElementsAre(2003u));
  EXPECT_EQ(Received(8, 0), whole.substr(1000, 2003));

  const std::vector<std::byte> no_layer = Selection::Layers(40, 2).Encode();
  request.selection = no_layer;
  Send(MessageType::kFetch, 9, request.Encode());
  EXPECT_THAT(TakeFetch(9).statuses, ElementsAre(Code::kFormatMismatch));
  request.selection = AsBytes("rubbish");
  Send(MessageType::kFetch, 10, request.Encode());
  EXPECT_EQ(TakeReply(10).head.status, Code::kCorruptMessage);
  ExpectIdle();
}

TEST_F(ServingFetchTest, LongChunksTravelInFramesWithinTheWindow) {
  ServingLimits limits;
  limits.frame_bytes = 1000;
  limits.fetch_window_bytes = 2500;
  Start(limits);
  const std::string bytes = Pattern(10500, 3);
  Put(Key("a"), bytes);
  session_->finish_sends_at_once = false;
  Send(MessageType::kFetch, 7, Fetching({Key("a")}).Encode());
  TakeFetch(7);
  EXPECT_EQ(Frames(), 3u);  // The third one fills the window.
  for (size_t finished = 1; finished <= 11; ++finished) {
    FinishOldest();
    EXPECT_EQ(Frames(), std::min<size_t>(finished + 3, 11));
  }
  EXPECT_EQ(Received(7, 0), bytes);
  ExpectIdle();
}

TEST_F(ServingFetchTest, FetchesThatShareASessionTakeTurns) {
  ServingLimits limits;
  limits.frame_bytes = 1000;
  limits.fetch_window_bytes = 1000;
  Start(limits);
  Put(Key("long"), Pattern(100000, 3));
  Put(Key("short"), Pattern(1000, 4));
  session_->finish_sends_at_once = false;
  Send(MessageType::kFetch, 7, Fetching({Key("long")}).Encode());
  Send(MessageType::kFetch, 8, Fetching({Key("short")}).Encode());
  FinishOldest();
  FinishOldest();
  FinishOldest();
  EXPECT_EQ(Received(8, 0).size(), 1000u) << "the short one waited for the whole long one";
}

TEST_F(ServingFetchTest, AChunkBeingReadSurvivesItsDrop) {
  const std::string bytes = Pattern(5000, 3);
  ServingLimits limits;
  limits.frame_bytes = 1000;
  limits.fetch_window_bytes = 1;
  Start(limits);
  Put(Key("a"), bytes);
  session_->finish_sends_at_once = false;
  Send(MessageType::kFetch, 7, Fetching({Key("a")}).Encode());
  EXPECT_THAT(TakeFetch(7).statuses, ElementsAre(Code::kOk));
  Send(MessageType::kDrop, 8, KeysRequest{.ns = ns(), .keys = {Key("a")}}.Encode());
  EXPECT_THAT(TakeStatuses(8), ElementsAre(Code::kOk));
  Put(Key("b"), Pattern(60u << 10, 9));
  EXPECT_EQ(store_->Stats().detached_chunks, 1u);
  for (int i = 0; i < 5; ++i) FinishOldest();
  EXPECT_EQ(Received(7, 0), bytes);
  ExpectIdle();
}

TEST_F(ServingFetchTest, ACancelledFetchReleasesItsChunksOnlyWhenTheWireHasLetGo) {
  ServingLimits limits;
  limits.frame_bytes = 1000;
  limits.fetch_window_bytes = 1500;
  Start(limits);
  Put(Key("a"), Pattern(5000, 3));
  Put(Key("b"), Pattern(5000, 4));
  session_->finish_sends_at_once = false;
  session_->finish_abandons_at_once = false;
  Send(MessageType::kFetch, 7, Fetching({Key("a"), Key("b")}).Encode());
  TakeFetch(7);
  Send(MessageType::kCancel, 7, {});
  EXPECT_EQ(serving_->counters.fetch_held_chunks.value(), 2);
  FinishOldest(Status(Code::kCancelled));
  FinishOldest(Status(Code::kCancelled));
  EXPECT_EQ(Frames(), 2u) << "nothing more is sent after the cancellation";
  On([&] { session_->held_abandons.front()(); });
  EXPECT_EQ(serving_->counters.fetch_failed[Code::kCancelled].value(), 2u);
  ExpectIdle();
}

TEST_F(ServingFetchTest, ACancelledFetchGivesItsPlaceInTheWindowToTheNext) {
  session_->mutable_info().max_in_flight = 1;
  Put(Key("a"), "aaaa");
  session_->finish_sends_at_once = false;
  session_->finish_abandons_at_once = false;
  Send(MessageType::kFetch, 7, Fetching({Key("a")}).Encode());
  TakeFetch(7);
  Send(MessageType::kFetch, 8, Fetching({Key("a")}).Encode());
  EXPECT_EQ(TakeReply(8).head.status, Code::kBusy);
  Send(MessageType::kCancel, 7, {});
  Send(MessageType::kFetch, 9, Fetching({Key("a")}).Encode());
  EXPECT_THAT(TakeFetch(9).statuses, ElementsAre(Code::kOk));
  // As many as that again, and no more, may be cancelled and still be read by the wire.
  Send(MessageType::kCancel, 9, {});
  Send(MessageType::kFetch, 10, Fetching({Key("a")}).Encode());
  EXPECT_EQ(TakeReply(10).head.status, Code::kBusy);
  for (int i = 0; i < 2; ++i) {
    FinishOldest(Status(Code::kCancelled));
    On([&] { session_->held_abandons[i](); });
  }
  ExpectIdle();
}

TEST_F(ServingFetchTest, AFetchThatNobodyReadsEndsAtItsDeadline) {
  Put(Key("a"), Pattern(5000, 3));
  session_->finish_sends_at_once = false;
  session_->finish_abandons_at_once = false;
  FetchRequest request = Fetching({Key("a")});
  request.deadline_ms = 1;
  Send(MessageType::kFetch, 7, request.Encode());
  ASSERT_TRUE(session_->WaitAbandons(1));
  On([&] { session_->held_abandons.front()(); });
  EXPECT_EQ(serving_->counters.fetch_held_chunks.value(), 1) << "the wire still reads it";
  FinishOldest(Status(Code::kCancelled));
  EXPECT_EQ(serving_->counters.fetch_failed[Code::kDeadlineExceeded].value(), 1u);
  ExpectIdle();
}

TEST_F(ServingFetchTest, TheEndOfTheSessionReleasesEverything) {
  Put(Key("a"), Pattern(5000, 3));
  Put(Key("b"), Pattern(5000, 4));
  session_->finish_sends_at_once = false;
  Send(MessageType::kFetch, 7, Fetching({Key("a"), Key("b")}).Encode());
  CloseSession();
  EXPECT_EQ(serving_->counters.fetch_failed[Code::kDisconnected].value(), 2u);
  EXPECT_EQ(serving_->counters.FetchItems(), 2u);
  ExpectIdle();
}

TEST_F(ServingFetchTest, AFrameThatTheWireLosesFailsItsItemAndNoOther) {
  Put(Key("a"), Pattern(500, 3));
  Put(Key("b"), Pattern(500, 4));
  session_->finish_sends_at_once = false;
  Send(MessageType::kFetch, 7, Fetching({Key("a"), Key("b")}).Encode());
  FinishOldest(Status(Code::kBadBuffer));
  FinishOldest();
  EXPECT_EQ(serving_->counters.fetch_failed[Code::kBadBuffer].value(), 1u);
  EXPECT_EQ(serving_->counters.fetch_delivered.value(), 1u);
  ExpectIdle();
}

TEST_F(ServingFetchTest, RepliesStayWithinAMessageHoweverLargeTheManifests) {
  ServingLimits limits;
  limits.reply_manifest_bytes = 200;
  Start(limits);
  Put(Key("a"), "aaa");
  Put(Key("b"), "bbb");
  Put(Key("c"), "ccc");
  Send(MessageType::kFetch, 7, Fetching({Key("a"), Key("b"), Key("c")}).Encode());
  const FetchAnswer answer = TakeFetch(7);
  EXPECT_EQ(answer.statuses.front(), Code::kOk);
  EXPECT_EQ(answer.statuses.back(), Code::kTooLarge);
  EXPECT_EQ(Received(7, 2), "");
  EXPECT_EQ(serving_->counters.FetchItems(), 3u);
  ExpectIdle();
}

TEST_F(ServingFetchTest, ALostReservationIsCountedAndStopsNothing) {
  Put(Key("a"), "aaa");
  MatchRequest match{.reserve_ttl_ms = 60000};
  match.groups.push_back({.ns = ns(), .keys = {Key("a")}});
  Send(MessageType::kMatch, 7, match.Encode());
  const Reply reply = TakeReply(7);
  const auto matched = DecodeMatchReply(reply.rest);
  ASSERT_TRUE(matched.ok());
  ASSERT_NE(matched->reservation, 0u);

  FetchRequest request = Fetching({Key("a")});
  request.reservation = matched->reservation;
  Send(MessageType::kFetch, 8, request.Encode());
  EXPECT_THAT(TakeFetch(8).statuses, ElementsAre(Code::kOk));
  EXPECT_EQ(serving_->counters.fetch_lost_reservations.value(), 0u);
  Send(MessageType::kRelease, 9, ReleaseRequest{matched->reservation}.Encode());
  EXPECT_EQ(TakeReply(9).head.status, Code::kOk);
  Send(MessageType::kFetch, 10, request.Encode());
  EXPECT_THAT(TakeFetch(10).statuses, ElementsAre(Code::kOk));
  EXPECT_EQ(serving_->counters.fetch_lost_reservations.value(), 1u);
  ExpectIdle();
}

TEST_F(ServingFetchTest, OneThatFetchesTheArenaAndDoesNotReadLeavesRoomToStore) {
  std::vector<ChunkKey> keys;
  for (int i = 0; i < 28; ++i) keys.push_back(Key("held" + std::to_string(i)));
  for (const ChunkKey& key : keys) Put(key, Pattern(2u << 20, 1));
  session_->finish_sends_at_once = false;
  Send(MessageType::kFetch, 7, Fetching(keys).Encode());
  const FetchAnswer answer = TakeFetch(7);
  // Half of half of 64 MiB.
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(answer.statuses[i], i < 8 ? Code::kOk : Code::kBusy) << i;
  }
  EXPECT_EQ(serving_->fetching.bytes(), 16u << 20);
  EXPECT_EQ(serving_->counters.fetch_refused[Code::kBusy].value(), 20u);
  for (int i = 0; i < 40; ++i) Put(Key("new" + std::to_string(i)), Pattern(2u << 20, 2));
  CloseSession();
  EXPECT_EQ(serving_->counters.FetchItems(), 28u);
  ExpectIdle();
}

TEST_F(ServingFetchTest, OfWhatASessionHasReservedMoreComesThrough) {
  std::vector<ChunkKey> keys;
  for (int i = 0; i < 24; ++i) keys.push_back(Key("held" + std::to_string(i)));
  for (const ChunkKey& key : keys) Put(key, Pattern(2u << 20, 1));
  MatchRequest match{.reserve_ttl_ms = 60000};
  match.groups.push_back({.ns = ns(), .keys = {keys.begin(), keys.begin() + 14}});
  Send(MessageType::kMatch, 6, match.Encode());
  const Reply reply = TakeReply(6);
  const auto matched = DecodeMatchReply(reply.rest);
  ASSERT_TRUE(matched.ok());
  ASSERT_NE(matched->reservation, 0u);
  session_->finish_sends_at_once = false;
  FetchRequest request = Fetching(keys);
  request.reservation = matched->reservation;
  Send(MessageType::kFetch, 7, request.Encode());
  const FetchAnswer answer = TakeFetch(7);
  // Three quarters of 32 MiB; and of the others nothing, since the session has its half already.
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(answer.statuses[i], i < 12 ? Code::kOk : Code::kBusy) << i;
  }
  CloseSession();
  ExpectIdle();
}

TEST_F(ServingFetchTest, WhatIsFetchedTwiceIsHeldOnceAndRoomComesBackWithTheBytes) {
  ServingLimits limits;
  limits.max_fetching = 1.0 / 1024;  // 64 KiB; a session, 32 KiB.
  Start(limits);
  for (const char* name : {"a", "b", "large"}) {
    Put(Key(name), Pattern(name[0] == 'l' ? 100'000 : 20'000, 1));
  }
  session_->finish_sends_at_once = false;
  Send(MessageType::kFetch, 7, Fetching({Key("a"), Key("b")}).Encode());
  EXPECT_THAT(TakeFetch(7).statuses, ElementsAre(Code::kOk, Code::kBusy));
  Send(MessageType::kFetch, 8, Fetching({Key("a"), Key("a")}).Encode());
  EXPECT_THAT(TakeFetch(8).statuses, ElementsAre(Code::kOk, Code::kOk));
  EXPECT_EQ(serving_->fetching.bytes(), 20'000u);
  FinishOldest();
  FinishOldest();
  EXPECT_EQ(serving_->fetching.bytes(), 20'000u);
  FinishOldest();
  Send(MessageType::kFetch, 9, Fetching({Key("large"), Key("b")}).Encode());
  EXPECT_THAT(TakeFetch(9).statuses, ElementsAre(Code::kOk, Code::kBusy))
      << "one chunk is always served";
  FinishOldest();
  ExpectIdle();
}

TEST_F(ServingFetchTest, AllSessionsTogetherAreBounded) {
  FetchBudget budget(1000);
  const ReadTerms terms{.ns = store_->FindNamespace(ns())};
  std::vector<ChunkRef> chunks;
  for (int i = 0; i < 4; ++i) {
    const ChunkKey key = Key(std::to_string(i));
    Put(key, Pattern(400, 1));
    auto found = store_->Find(key, terms);
    ASSERT_TRUE(found.ok());
    chunks.push_back(std::move(*found));
  }
  auto first = budget.Take(1, chunks[0]);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(budget.Take(1, chunks[1]).status().code(), Code::kBusy) << "half for a session";
  auto second = budget.Take(2, chunks[1]);
  EXPECT_TRUE(second.ok());
  EXPECT_EQ(budget.Take(3, chunks[2]).status().code(), Code::kBusy) << "800 of 1000 are held";
  EXPECT_TRUE(budget.Take(3, chunks[1]).ok()) << "held anyway";
  *first = FetchBudget::Hold();
  EXPECT_TRUE(budget.Take(3, chunks[2]).ok());
  *second = FetchBudget::Hold();
  EXPECT_EQ(budget.bytes(), 0u);
}

TEST_F(ServingFetchTest, TruncatedRequestsAreAnsweredAndHarmless) {
  const std::vector<std::byte> whole = Fetching({Key("a"), Key("b")}).Encode();
  for (size_t size = 0; size < whole.size(); ++size) {
    const uint64_t id = next_name_++;
    Send(MessageType::kFetch, id, {whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)});
    EXPECT_EQ(TakeReply(id).head.status, Code::kCorruptMessage) << size;
  }
}

}  // namespace
}  // namespace penstock
