#include <future>

#include "common/base/gate.h"
#include "tests/unit/daemon/serving_fixture.h"

namespace penstock {
namespace {

using testing::ElementsAre;

class ServingSimpleTest : public ServingTest {
 protected:
  MatchReply TakeMatch(uint64_t id) {
    const Reply reply = TakeReply(id);
    EXPECT_EQ(reply.head.status, Code::kOk) << reply.head.message;
    auto decoded = DecodeMatchReply(reply.rest);
    EXPECT_TRUE(decoded.ok());
    return decoded.ok() ? std::move(*decoded) : MatchReply{};
  }
  MatchReply Match(const MatchRequest& request) {
    const uint64_t id = next_name_++;
    Send(MessageType::kMatch, id, request.Encode());
    return TakeMatch(id);
  }
  std::vector<Code> Keys(MessageType type, std::vector<ChunkKey> keys, uint32_t ttl_ms = 0) {
    const uint64_t id = next_name_++;
    Send(type, id, KeysRequest{.ttl_ms = ttl_ms, .ns = ns(), .keys = std::move(keys)}.Encode());
    return TakeStatuses(id);
  }
  MatchRequest Prefix(std::initializer_list<std::string_view> names) {
    MatchRequest request;
    request.groups.push_back({.ns = ns()});
    for (const auto name : names) request.groups[0].keys.push_back(Key(name));
    return request;
  }
};

TEST_F(ServingSimpleTest, MatchFindsTheLongestPrefixAndItsDetails) {
  Put(Key("0"), "aaaa");
  Put(Key("1"), "bb");
  Put(Key("3"), "d");
  MatchRequest request = Prefix({"0", "1", "2", "3"});
  request.want_details = true;
  const MatchReply reply = Match(request);
  EXPECT_EQ(reply.matched_chunks, 2u);
  EXPECT_EQ(reply.matched_bytes, 6u);
  EXPECT_EQ(reply.reservation, 0u);
  EXPECT_THAT(reply.details,
              ElementsAre(MatchReply::Detail{.stored_bytes = 4, .index = 0, .tier = Tier::kDram},
                          MatchReply::Detail{.stored_bytes = 2, .index = 1, .tier = Tier::kDram}));
  EXPECT_EQ(serving_->counters.match_keys.value(), 4u);
  EXPECT_EQ(serving_->counters.matched_keys.value(), 2u);
}

TEST_F(ServingSimpleTest, AMatchThatMakesNoSenseIsRefused) {
  Send(MessageType::kMatch, 7, MatchRequest{}.Encode());
  EXPECT_EQ(TakeReply(7).head.status, Code::kInvalidArgument);
  MatchRequest uneven = Prefix({"0", "1"});
  uneven.groups.push_back({.ns = ns(), .keys = {Key("0")}});
  Send(MessageType::kMatch, 8, uneven.Encode());
  EXPECT_EQ(TakeReply(8).head.status, Code::kInvalidArgument);
}

TEST_F(ServingSimpleTest, AnUnknownNamespaceMatchesNothing) {
  Put(Key("0"), "aaaa");
  MatchRequest request = Prefix({"0"});
  request.groups[0].ns.bytes[3] ^= 1;
  EXPECT_EQ(Match(request).matched_chunks, 0u);
}

TEST_F(ServingSimpleTest, AReservationEndsWithItsSession) {
  Put(Key("0"), "aaaa");
  MatchRequest request = Prefix({"0"});
  request.reserve_ttl_ms = 60000;
  EXPECT_NE(Match(request).reservation, 0u);
  EXPECT_EQ(store_->Stats().reservations, 1u);
  CloseSession();
  EXPECT_EQ(store_->Stats().reservations, 0u);
}

TEST_F(ServingSimpleTest, ASessionHoldsABoundedNumberOfReservations) {
  ServingLimits limits;
  limits.max_reservations_per_session = 2;
  Start(limits);
  Put(Key("0"), "aaaa");
  MatchRequest request = Prefix({"0"});
  request.reserve_ttl_ms = 60000;
  const uint64_t first = Match(request).reservation;
  EXPECT_NE(first, 0u);
  EXPECT_NE(Match(request).reservation, 0u);
  const MatchReply third = Match(request);
  EXPECT_EQ(third.matched_chunks, 1u);
  EXPECT_EQ(third.reservation, 0u);
  Send(MessageType::kRelease, 7, ReleaseRequest{first}.Encode());
  EXPECT_EQ(TakeReply(7).head.status, Code::kOk);
  EXPECT_NE(Match(request).reservation, 0u);
}

TEST_F(ServingSimpleTest, ReleasingTwiceIsFenced) {
  Put(Key("0"), "aaaa");
  MatchRequest request = Prefix({"0"});
  request.reserve_ttl_ms = 60000;
  const uint64_t reservation = Match(request).reservation;
  Send(MessageType::kRelease, 7, ReleaseRequest{reservation}.Encode());
  EXPECT_EQ(TakeReply(7).head.status, Code::kOk);
  Send(MessageType::kRelease, 8, ReleaseRequest{reservation}.Encode());
  EXPECT_EQ(TakeReply(8).head.status, Code::kFenced);
  EXPECT_EQ(store_->Stats().reservations, 0u);
}

TEST_F(ServingSimpleTest, PinsKeepAndUnpinsGiveBack) {
  Put(Key("0"), "aaaa");
  EXPECT_THAT(Keys(MessageType::kPin, {Key("0"), Key("1")}, 60000),
              ElementsAre(Code::kOk, Code::kMiss));
  EXPECT_EQ(store_->Stats().pinned_chunks, 1u);
  EXPECT_THAT(Keys(MessageType::kPin, {Key("0")}, 0), ElementsAre(Code::kOk));
  EXPECT_THAT(Keys(MessageType::kPin, {Key("0")}, 0), ElementsAre(Code::kFenced));
  EXPECT_EQ(store_->Stats().pinned_chunks, 0u);
}

TEST_F(ServingSimpleTest, DropsAndTouchesAnswerKeyByKey) {
  Put(Key("0"), "aaaa");
  Put(Key("2"), "cccc");
  EXPECT_THAT(Keys(MessageType::kTouch, {Key("0"), Key("1"), Key("2")}),
              ElementsAre(Code::kOk, Code::kMiss, Code::kMiss));
  EXPECT_THAT(Keys(MessageType::kDrop, {Key("0"), Key("1"), Key("2")}),
              ElementsAre(Code::kOk, Code::kMiss, Code::kOk));
  EXPECT_EQ(store_->Stats().chunks, 0u);
  EXPECT_EQ(store_->Stats().used_bytes, 0u);
}

TEST_F(ServingSimpleTest, StatTellsWhatIsThere) {
  Put(Key("0"), "aaaa");
  Send(MessageType::kStat, 7, StatRequest{ns(), Key("0")}.Encode());
  const Reply reply = TakeReply(7);
  const auto stat = DecodeStatReply(reply.rest);
  ASSERT_TRUE(stat.ok());
  EXPECT_EQ(stat->stored_bytes, 4u);
  EXPECT_EQ(stat->tier, Tier::kDram);
  Send(MessageType::kStat, 8, StatRequest{ns(), Key("1")}.Encode());
  EXPECT_EQ(TakeReply(8).head.status, Code::kMiss);
}

TEST_F(ServingSimpleTest, ReservedAndUnknownTypesAreAnsweredAndCounted) {
  const std::vector<std::byte> body(3);
  for (const auto type : {MessageType::kHint, MessageType::kPull, MessageType::kPush}) {
    Send(type, 7, body);
    EXPECT_EQ(TakeReply(7).head.status, Code::kUnimplemented);
  }
  for (const int type : {29, 40, 63, 66, 200, 255}) {
    Send(static_cast<MessageType>(type), 8, body);
    const Reply reply = TakeReply(8);
    EXPECT_EQ(reply.head.status, Code::kUnimplemented);
    EXPECT_EQ(static_cast<int>(reply.head.request), type);
    EXPECT_THAT(reply.head.message, testing::HasSubstr(std::to_string(type)));
  }
  const auto count = [this](RequestKind kind) {
    return serving_->counters.requests[static_cast<size_t>(kind)]
        .replies[Code::kUnimplemented]
        .value();
  };
  EXPECT_EQ(count(RequestKind::kReserved), 3u);
  EXPECT_EQ(count(RequestKind::kUnknown), 6u);
}

TEST_F(ServingSimpleTest, ASessionKeepsItsNamespacesOpenUntilItClosesThemOrEnds) {
  const auto open = [&](const std::string& model, bool close = false) {
    NamespaceDescriptor descriptor = descriptor_;
    descriptor.model = model;
    const auto encoded = descriptor.Encode();
    Send(MessageType::kOpenNamespace, 7,
         OpenNamespaceRequest{.descriptor = encoded, .close = close}.Encode());
    return TakeReply(7).head.status;
  };
  const uint32_t limit = ChunkStoreOptions().max_namespaces;
  for (uint32_t i = 1; i < limit; ++i) ASSERT_EQ(open(std::to_string(i)), Code::kOk);
  EXPECT_EQ(open("one more"), Code::kResourceExhausted);
  EXPECT_EQ(open("1", /*close=*/true), Code::kOk);
  EXPECT_EQ(open("1", /*close=*/true), Code::kOk);
  EXPECT_EQ(open("one more"), Code::kOk);
  EXPECT_EQ(open("another"), Code::kResourceExhausted);
  // Its own is still there, and what it closed is found no more.
  Put(Key("0"), "aaaa");
  EXPECT_EQ(store_->ListNamespaces().size(), limit);
  CloseSession();
  for (uint32_t i = 0; i + 1 < limit; ++i) {
    ASSERT_TRUE(store_->HoldNamespace(Digest256::Sha256({AsBytes(std::to_string(i))}), {}).ok());
  }
  EXPECT_NE(store_->FindNamespace(ns()), NamespaceId::kNone);  // It has a chunk.
}

TEST_F(ServingSimpleTest, ANamespaceOfAnotherTenantDoesNotExist) {
  NamespaceDescriptor theirs = descriptor_;
  theirs.tenant = "somebody-else";
  Send(MessageType::kOpenNamespace, 7, OpenNamespaceRequest{theirs.Encode()}.Encode());
  EXPECT_EQ(TakeReply(7).head.status, Code::kPermissionDenied);

  // They have opened it and stored something.
  const Fingerprint fingerprint = theirs.ComputeFingerprint();
  const auto id = store_->OpenNamespace(fingerprint, theirs.Encode());
  ASSERT_TRUE(id.ok());
  const ChunkKey key = NamedKey(fingerprint, "secret");
  auto pending = store_->Begin(
      {.key = key, .ns = *id, .manifest = Manifest::Plain(0, ChunkChecksum(key, ByteSpan{}))});
  ASSERT_TRUE(pending.ok());
  ASSERT_TRUE(store_->Commit(std::move(*pending)).ok());

  MatchRequest match;
  match.groups.push_back({.ns = fingerprint, .keys = {key}});
  EXPECT_EQ(Match(match).matched_chunks, 0u);
  Send(MessageType::kStat, 8, StatRequest{fingerprint, key}.Encode());
  EXPECT_EQ(TakeReply(8).head.status, Code::kMiss);
  Send(MessageType::kDrop, 9, KeysRequest{.ns = fingerprint, .keys = {key}}.Encode());
  EXPECT_THAT(TakeStatuses(9), ElementsAre(Code::kMiss));
  Send(MessageType::kStore, 10, Storing(fingerprint).Add(key, "mine").Encode());
  EXPECT_THAT(TakeGrant(10), ElementsAre(Code::kInvalidArgument));
  EXPECT_EQ(store_->Stats().chunks, 1u);
}

TEST_F(ServingSimpleTest, AnswersAddUpPerKindAndStatus) {
  Send(MessageType::kStore, 7, Storing(ns()).Add(Key("0"), "aaaa").Encode());
  EXPECT_THAT(TakeGrant(7), ElementsAre(Code::kOk));
  EXPECT_TRUE(Data(7, 0, 0, "aaaa"));
  EXPECT_THAT(TakeStatuses(7), ElementsAre(Code::kOk));
  Match(Prefix({"0"}));
  Keys(MessageType::kDrop, {Key("0")});
  const auto& requests = serving_->counters.requests;
  const auto ok = [&](RequestKind kind) {
    return requests[static_cast<size_t>(kind)].replies[Code::kOk].value();
  };
  EXPECT_EQ(ok(RequestKind::kOpenNamespace), 1u);
  EXPECT_EQ(ok(RequestKind::kStore), 1u);
  EXPECT_EQ(ok(RequestKind::kMatch), 1u);
  EXPECT_EQ(ok(RequestKind::kDrop), 1u);
}

TEST(ReceivedRanges, TakesEveryByteExactlyOnceInAnyOrder) {
  ReceivedRanges ranges(100);
  EXPECT_TRUE(ranges.Claim(50, 25));
  EXPECT_TRUE(ranges.Claim(0, 25));
  EXPECT_FALSE(ranges.Claim(0, 0));
  EXPECT_FALSE(ranges.Claim(24, 1));
  EXPECT_FALSE(ranges.Claim(24, 10));
  EXPECT_FALSE(ranges.Claim(40, 11));
  EXPECT_FALSE(ranges.Claim(40, 60));
  EXPECT_FALSE(ranges.Claim(60, 5));
  EXPECT_FALSE(ranges.Claim(99, 2));
  EXPECT_FALSE(ranges.Claim(101, 1));
  EXPECT_FALSE(ranges.Claim(UINT64_MAX, UINT64_MAX));
  EXPECT_EQ(ranges.claimed(), 50u);
  EXPECT_TRUE(ranges.Claim(25, 25));
  EXPECT_TRUE(ranges.Claim(75, 25));
  EXPECT_EQ(ranges.claimed(), 100u);
  EXPECT_FALSE(ranges.Claim(0, 100));
}

TEST(ReceivedRanges, AgreesWithABitmapOnRandomClaims) {
  uint64_t state = 12345;
  const auto draw = [&state](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  for (int round = 0; round < 200; ++round) {
    const uint64_t total = 1 + draw(200);
    ReceivedRanges ranges(total);
    std::vector<bool> taken(total);
    for (int i = 0; i < 200; ++i) {
      const uint64_t offset = draw(total + 5), length = draw(30);
      bool free = length > 0 && offset + length <= total;
      for (uint64_t at = offset; free && at < offset + length; ++at) free = !taken[at];
      ASSERT_EQ(ranges.Claim(offset, length), free) << offset << "+" << length;
      for (uint64_t at = offset; free && at < offset + length; ++at) taken[at] = true;
    }
    EXPECT_EQ(ranges.claimed(),
              static_cast<uint64_t>(std::count(taken.begin(), taken.end(), true)));
  }
}

TEST(ReceivedRanges, GapsAreBounded) {
  ReceivedRanges ranges(1u << 20);
  for (uint64_t i = 0; i < ReceivedRanges::kMaxRuns; ++i) ASSERT_TRUE(ranges.Claim(i * 2, 1));
  EXPECT_FALSE(ranges.Claim(1u << 19, 1));
  EXPECT_TRUE(ranges.Claim(1, 1));
  EXPECT_TRUE(ranges.Claim(1u << 19, 1));
}

TEST(WorkerPool, RunsWhatItTookAndRefusesBeyondItsQueue) {
  auto pool = WorkerPool::Start(1, 2);
  ASSERT_TRUE(pool.ok());
  Gate gate;
  const auto pass = std::make_shared<std::optional<Gate::Pass>>(gate.TryEnter());
  std::promise<void> let_go;  // Holds the only worker.
  std::atomic<int> ran{0};
  ASSERT_TRUE((*pool)->TrySubmit([&, pass, wait = let_go.get_future().share()] {
    pass->reset();
    wait.wait();
    ++ran;
  }));
  gate.Close();  // The worker has begun, so the queue is empty.
  EXPECT_TRUE((*pool)->TrySubmit([&] { ++ran; }));
  EXPECT_TRUE((*pool)->TrySubmit([&] { ++ran; }));
  EXPECT_FALSE((*pool)->TrySubmit([&] { ++ran; }));
  let_go.set_value();
  (*pool)->Stop();
  EXPECT_EQ(ran, 3);
  EXPECT_FALSE((*pool)->TrySubmit([&] { ++ran; }));
}

}  // namespace
}  // namespace penstock
