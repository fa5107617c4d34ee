#include "common/protocol/messages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace penstock {
namespace {

Digest256 D(std::string_view text) { return Digest256::Sha256({AsBytes(text)}); }

MatchRequest SampleMatch() {
  MatchRequest r;
  r.deadline_ms = 50;
  r.reserve_ttl_ms = 30'000;
  r.want_details = true;
  r.groups = {{D("full"), 0, {D("a"), D("b")}}, {D("sliding"), 4, {D("c"), D("d")}}};
  return r;
}

FetchRequest SampleFetch(ByteSpan selection) {
  FetchRequest r;
  r.deadline_ms = 7;
  r.accept_inexact = true;
  r.reservation = 0x1122334455667788;
  r.tag = 9;
  r.selection = selection;
  r.namespaces = {D("n0"), D("n1")};
  r.items = {{D("a"), 4096, 1}, {D("b"), 0, 0}};
  return r;
}

StoreRequest SampleStore(ByteSpan manifest) {
  StoreRequest r;
  r.deadline_ms = 11;
  r.replace = true;
  r.eager = true;
  r.namespaces = {D("n")};
  r.items = {{D("a"), 64, 0, std::nullopt, manifest}, {D("b"), 65, 0, D("a"), {}}};
  return r;
}

TEST(Messages, MatchRoundTrips) {
  const auto bytes = SampleMatch().Encode();
  const auto r = MatchRequest::Decode(bytes);
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  EXPECT_EQ(r->deadline_ms, 50u);
  EXPECT_EQ(r->reserve_ttl_ms, 30'000u);
  EXPECT_TRUE(r->want_details);
  ASSERT_EQ(r->groups.size(), 2u);
  EXPECT_EQ(r->groups[1].ns, D("sliding"));
  EXPECT_EQ(r->groups[1].window_chunks, 4u);
  EXPECT_EQ(r->groups[1].keys, (std::vector{D("c"), D("d")}));
}

TEST(Messages, FetchRoundTrips) {
  const auto bytes = SampleFetch(AsBytes("sel")).Encode();
  const auto r = FetchRequest::Decode(bytes);
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  EXPECT_EQ(r->reservation, 0x1122334455667788u);
  EXPECT_EQ(r->tag, 9u);
  EXPECT_TRUE(r->accept_inexact);
  EXPECT_EQ(AsText(r->selection), "sel");
  ASSERT_EQ(r->items.size(), 2u);
  EXPECT_EQ(r->items[0].key, D("a"));
  EXPECT_EQ(r->items[0].capacity, 4096u);
  EXPECT_EQ(r->items[0].ns, 1u);
}

TEST(Messages, OpeningAndClosingANamespaceRoundTrip) {
  for (const bool close : {false, true}) {
    const auto bytes = OpenNamespaceRequest{.descriptor = AsBytes("d"), .close = close}.Encode();
    const auto r = OpenNamespaceRequest::Decode(bytes);
    ASSERT_TRUE(r.ok()) << r.status().ToString();
    EXPECT_EQ(AsText(r->descriptor), "d");
    EXPECT_EQ(r->close, close);
  }
}

TEST(Messages, StoreRoundTrips) {
  const auto bytes = SampleStore(AsBytes("manifest")).Encode();
  const auto r = StoreRequest::Decode(bytes);
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  EXPECT_TRUE(r->replace);
  EXPECT_TRUE(r->eager);
  ASSERT_EQ(r->items.size(), 2u);
  EXPECT_EQ(AsText(r->items[0].manifest), "manifest");
  EXPECT_FALSE(r->items[0].parent.has_value());
  EXPECT_EQ(r->items[1].parent, D("a"));
  EXPECT_TRUE(r->items[1].manifest.empty());
}

TEST(Messages, RepliesRoundTrip) {
  const ReplyHead head = ReplyHead::From(MessageType::kStore, Status(Code::kBusy, "full"), 5);
  const auto plain = EncodeReply(head);
  const auto r = DecodeReply(plain);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->head.request, MessageType::kStore);
  EXPECT_EQ(r->head.ToStatus().ToString(), "BUSY: full");
  EXPECT_EQ(r->head.retry_after_ms, 5u);
  EXPECT_TRUE(r->rest.empty());

  const ReplyHead ok = ReplyHead::From(MessageType::kFetch, Status::Ok());
  const auto fetch = EncodeReply(ok, FetchReply{{{Code::kOk, 10, AsBytes("m0")},
                                                 {Code::kMiss, 0, {}},
                                                 {Code::kOk, 0, AsBytes("m2")}}});
  const auto f = DecodeFetchReply(DecodeReply(fetch)->rest);
  ASSERT_TRUE(f.ok());
  ASSERT_EQ(f->items.size(), 3u);
  EXPECT_EQ(f->items[1].status, Code::kMiss);
  EXPECT_EQ(AsText(f->items[2].manifest), "m2");

  const MatchReply match{3, 1234, 77, {{100, 1, 2, Tier::kDram}}};
  const auto match_bytes = EncodeReply(ok, match);
  const auto m = DecodeMatchReply(DecodeReply(match_bytes)->rest);
  ASSERT_TRUE(m.ok());
  EXPECT_EQ(m->matched_chunks, 3u);
  EXPECT_EQ(m->reservation, 77u);
  EXPECT_EQ(m->details, match.details);

  const auto stat_bytes = EncodeReply(ok, StatReply{9, 8, 7, 6, 5, Tier::kDram, AsBytes("x")});
  const auto s = DecodeStatReply(DecodeReply(stat_bytes)->rest);
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->pins, 7u);
  EXPECT_EQ(AsText(s->manifest), "x");

  const ItemStatuses statuses{{Code::kOk, Code::kAllPinned}};
  const auto item_bytes = EncodeReply(ok, statuses);
  EXPECT_EQ(ItemStatuses::Decode(DecodeReply(item_bytes)->rest)->statuses, statuses.statuses);
}

TEST(Messages, LongTextIsCut) {
  const auto bytes = EncodeReply(
      ReplyHead::From(MessageType::kPin, Status(Code::kInternal, std::string(99999, 'x'))));
  EXPECT_EQ(DecodeReply(bytes)->head.message.size(), kMaxMessageText);
}

// Also by its reader, whatever its writer did, and what follows it stays in its place.
TEST(Messages, LongTextOfAPeerIsCut) {
  auto bytes = EncodeReply(ReplyHead::From(
      MessageType::kPin, Status(Code::kInternal, std::string(kMaxMessageText, 'x'))));
  const auto text = static_cast<uint16_t>(kMaxMessageText + 1000);
  std::memcpy(bytes.data() + 6, &text, sizeof(text));
  bytes.resize(bytes.size() + 1000, std::byte{'y'});
  bytes.push_back(std::byte{'z'});
  const auto decoded = DecodeReply(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(decoded->head.message, std::string(kMaxMessageText, 'x'));
  EXPECT_EQ(AsText(decoded->rest), "z");
}

// A newer peer appends fields to the fixed part and to the elements: an older one skips them.
TEST(Messages, FieldsOfNewerVersionsAreSkipped) {
  auto bytes = ReleaseRequest{42}.Encode();
  const auto longer = static_cast<uint16_t>(bytes.size() + 4);
  std::memcpy(bytes.data(), &longer, sizeof(longer));
  bytes.resize(bytes.size() + 4, std::byte{0xee});
  ASSERT_TRUE(ReleaseRequest::Decode(bytes).ok());
  EXPECT_EQ(ReleaseRequest::Decode(bytes)->reservation, 42u);
}

TEST(Messages, CountsBeyondTheLimitsAreRefusedBeforeMemoryIsReserved) {
  MatchRequest match;
  match.groups.resize(kMaxGroups + 1);
  EXPECT_EQ(MatchRequest::Decode(match.Encode()).status().code(), Code::kTooLarge);
  KeysRequest keys;
  keys.keys.resize(kMaxItems + 1);
  EXPECT_EQ(KeysRequest::Decode(keys.Encode()).status().code(), Code::kTooLarge);
  auto fetch = SampleFetch({}).Encode();
  const uint32_t forged = kMaxItems;  // Many items claimed, two there.
  std::memcpy(fetch.data() + 24, &forged, sizeof(forged));
  EXPECT_EQ(FetchRequest::Decode(fetch).status().code(), Code::kCorruptMessage);
}

std::string Hex(ByteSpan bytes) {
  std::string hex;
  for (const std::byte b : bytes) hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  return hex;
}

// docs/formats/messages.md in bytes: what changes here breaks every peer.
TEST(Messages, BytesAreTheOnesOfTheFormat) {
  EXPECT_EQ(Hex(ReleaseRequest{0x0102030405060708}.Encode()), "10000000000000000807060504030201");
  EXPECT_EQ(Hex(EncodeReply(ReplyHead{MessageType::kFetch, Code::kBusy, 5, "no"})),
            "0c00120006000200050000006e6f");
  MatchRequest match;
  match.deadline_ms = 0x11;
  match.reserve_ttl_ms = 0x22;
  match.want_details = true;
  match.groups = {{Digest256{}, 3, {Digest256{}}}};
  EXPECT_EQ(Hex(match.Encode()), "1400010011000000220000000100000000000000" + std::string(64, '0') +
                                     "0300000001000000" + std::string(64, '0'));
}

TEST(Messages, TypesKeepTheirNumbers) {
  const std::pair<MessageType, int> golden[] = {
      {MessageType::kHello, 1},   {MessageType::kHelloReply, 2},     {MessageType::kAttach, 3},
      {MessageType::kPing, 5},    {MessageType::kPong, 6},           {MessageType::kGoodbye, 7},
      {MessageType::kData, 8},    {MessageType::kOpenNamespace, 16}, {MessageType::kMatch, 17},
      {MessageType::kFetch, 18},  {MessageType::kStore, 19},         {MessageType::kTouch, 20},
      {MessageType::kPin, 21},    {MessageType::kDrop, 22},          {MessageType::kRelease, 23},
      {MessageType::kCancel, 24}, {MessageType::kStat, 25},          {MessageType::kHint, 26},
      {MessageType::kPull, 27},   {MessageType::kPush, 28},          {MessageType::kReply, 64},
      {MessageType::kGrant, 65},
  };
  for (const auto& [type, number] : golden) EXPECT_EQ(static_cast<int>(type), number);
}

// Every decoder, over every prefix and over random damage, answers without reading past its input
// (AddressSanitizer watches in that build).
TEST(Messages, DecodersTakeAnyBytes) {
  const std::vector<std::vector<std::byte>> seeds = {
      SampleMatch().Encode(),
      SampleFetch(AsBytes("sel")).Encode(),
      SampleStore(AsBytes("manifest")).Encode(),
      OpenNamespaceRequest{AsBytes("d")}.Encode(),
      KeysRequest{1, 2, true, D("n"), {D("k")}}.Encode(),
      StatRequest{D("n"), D("k")}.Encode(),
      ItemStatuses{{Code::kOk, Code::kMiss}}.Encode(),
      EncodeReply(ReplyHead{}, MatchReply{1, 2, 3, {{4, 5, 6, Tier::kSsd}}}),
      EncodeReply(ReplyHead{}, FetchReply{{{Code::kOk, 1, AsBytes("m")}}}),
  };
  const std::vector<std::function<bool(ByteSpan)>> decoders = {
      [](ByteSpan b) { return MatchRequest::Decode(b).ok(); },
      [](ByteSpan b) { return FetchRequest::Decode(b).ok(); },
      [](ByteSpan b) { return StoreRequest::Decode(b).ok(); },
      [](ByteSpan b) { return OpenNamespaceRequest::Decode(b).ok(); },
      [](ByteSpan b) { return KeysRequest::Decode(b).ok(); },
      [](ByteSpan b) { return ReleaseRequest::Decode(b).ok(); },
      [](ByteSpan b) { return StatRequest::Decode(b).ok(); },
      [](ByteSpan b) { return ItemStatuses::Decode(b).ok(); },
      [](ByteSpan b) { return DecodeReply(b).ok(); },
      [](ByteSpan b) { return DecodeMatchReply(b).ok(); },
      [](ByteSpan b) { return DecodeFetchReply(b).ok(); },
      [](ByteSpan b) { return DecodeStatReply(b).ok(); },
  };
  std::mt19937_64 random(1);
  for (const auto& seed : seeds) {
    for (const auto& decode : decoders) {
      for (size_t n = 0; n < seed.size(); ++n) {
        const std::vector<std::byte> cut(seed.begin(), seed.begin() + static_cast<ptrdiff_t>(n));
        decode(cut);
      }
      for (int i = 0; i < 200; ++i) {
        auto damaged = seed;
        for (int j = 0; j < 3; ++j) damaged[random() % damaged.size()] = std::byte(random());
        decode(damaged);
      }
    }
  }
  // A request cut short is never accepted.
  for (size_t i = 0; i < 5; ++i) {
    for (size_t n = 0; n < seeds[i].size(); ++n) {
      EXPECT_FALSE(decoders[i](ByteSpan(seeds[i]).first(n))) << "decoder " << i << " at " << n;
    }
  }
}

}  // namespace
}  // namespace penstock
