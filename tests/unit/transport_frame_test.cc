#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include "common/transport/endpoint.h"
#include "common/transport/frame.h"

namespace penstock {
namespace {

template <typename T>
ByteSpan BytesOf(const T& value) {
  return {reinterpret_cast<const std::byte*>(&value), sizeof(value)};
}

std::string Hex(ByteSpan bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<int>(b) >> 4];
    text += kDigits[static_cast<int>(b) & 15];
  }
  return text;
}

// What docs/formats/wire.md shows. A change here breaks every peer.
TEST(Frame, HeaderHasTheBytesOfTheFormat) {
  const FrameHeader header = MakeFrameHeader(MessageType::kFetch, 0x1122334455667788, 0x010203);
  EXPECT_EQ(Hex(BytesOf(header)).substr(0, 48),
            "504e4b31"            // magic
            "0100"                // version
            "12"                  // type
            "00"                  // flags
            "03020100"            // body_bytes
            "00000000"            // reserved
            "8877665544332211");  // request_id
  EXPECT_EQ(Hex(BytesOf(header)).substr(48), "209e4676be7c4b98");
}

TEST(Frame, MessageTypesKeepTheirNumbers) {
  EXPECT_EQ(static_cast<int>(MessageType::kHello), 1);
  EXPECT_EQ(static_cast<int>(MessageType::kHelloReply), 2);
  EXPECT_EQ(static_cast<int>(MessageType::kAttach), 3);
  EXPECT_EQ(static_cast<int>(MessageType::kAttachReply), 4);
  EXPECT_EQ(static_cast<int>(MessageType::kPing), 5);
  EXPECT_EQ(static_cast<int>(MessageType::kPong), 6);
  EXPECT_EQ(static_cast<int>(MessageType::kGoodbye), 7);
  EXPECT_EQ(static_cast<int>(MessageType::kData), 8);
  EXPECT_EQ(static_cast<int>(MessageType::kOpenNamespace), 16);
  EXPECT_EQ(static_cast<int>(MessageType::kMatch), 17);
  EXPECT_EQ(static_cast<int>(MessageType::kFetch), 18);
  EXPECT_EQ(static_cast<int>(MessageType::kStore), 19);
  EXPECT_EQ(static_cast<int>(MessageType::kTouch), 20);
  EXPECT_EQ(static_cast<int>(MessageType::kPin), 21);
  EXPECT_EQ(static_cast<int>(MessageType::kDrop), 22);
  EXPECT_EQ(static_cast<int>(MessageType::kRelease), 23);
  EXPECT_EQ(static_cast<int>(MessageType::kCancel), 24);
  EXPECT_EQ(static_cast<int>(MessageType::kStat), 25);
  EXPECT_EQ(static_cast<int>(MessageType::kHint), 26);
  EXPECT_EQ(static_cast<int>(MessageType::kPull), 27);
  EXPECT_EQ(static_cast<int>(MessageType::kPush), 28);
  EXPECT_EQ(static_cast<int>(MessageType::kReply), 64);
  EXPECT_EQ(static_cast<int>(MessageType::kGrant), 65);
}

TEST(Frame, ParseGivesBackWhatMakeMade) {
  const FrameHeader made = MakeFrameHeader(MessageType::kReply, 42, 17);
  const auto parsed = ParseFrameHeader(BytesOf(made));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(0, std::memcmp(&made, &*parsed, sizeof(made)));
}

TEST(Frame, EveryFlippedBitIsFound) {
  const FrameHeader made = MakeFrameHeader(MessageType::kReply, 42, 17);
  for (size_t bit = 0; bit < 8 * sizeof(made); ++bit) {
    FrameHeader bad = made;
    reinterpret_cast<unsigned char*>(&bad)[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
    EXPECT_EQ(ParseFrameHeader(BytesOf(bad)).status().code(), Code::kCorruptMessage) << bit;
  }
}

TEST(Frame, TruncatedHeadersAreRefused) {
  const FrameHeader made = MakeFrameHeader(MessageType::kReply, 42, 17);
  for (size_t size = 0; size < sizeof(made); ++size) {
    EXPECT_EQ(ParseFrameHeader(BytesOf(made).first(size)).status().code(), Code::kCorruptMessage);
  }
}

TEST(Frame, BodiesOverTheLimitAreRefusedAndTheLimitItselfIsNot) {
  EXPECT_TRUE(
      ParseFrameHeader(BytesOf(MakeFrameHeader(MessageType::kStore, 1, FrameHeader::kMaxBodyBytes)))
          .ok());
  for (const uint32_t size : {FrameHeader::kMaxBodyBytes + 1, 0xffffffffu}) {
    EXPECT_EQ(
        ParseFrameHeader(BytesOf(MakeFrameHeader(MessageType::kStore, 1, size))).status().code(),
        Code::kTooLarge);
  }
}

TEST(Frame, DataOffsetsThatOverflowAreRefused) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  DataHeader header;
  header.offset = kMax - 10;
  header.length = 10;
  EXPECT_TRUE(ParseDataHeader(BytesOf(header)).ok());
  header.length = 11;
  EXPECT_EQ(ParseDataHeader(BytesOf(header)).status().code(), Code::kCorruptMessage);
  header.offset = 1;
  header.length = kMax;
  EXPECT_EQ(ParseDataHeader(BytesOf(header)).status().code(), Code::kCorruptMessage);
}

TEST(Frame, DataOfAFailedItemHasNoPayload) {
  DataHeader header;
  header.status = static_cast<uint16_t>(Code::kMiss);
  EXPECT_TRUE(ParseDataHeader(BytesOf(header)).ok());
  header.length = 1;
  EXPECT_EQ(ParseDataHeader(BytesOf(header)).status().code(), Code::kCorruptMessage);
}

TEST(Frame, DataHeadersOfNewerPeersMayBeLonger) {
  std::vector<std::byte> body(sizeof(DataHeader) + 8, std::byte{0});
  body[16] = std::byte{5};
  const auto parsed = ParseDataHeader(body);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->length, 5u);
  for (size_t size = 0; size < sizeof(DataHeader); ++size) {
    EXPECT_FALSE(ParseDataHeader(ByteSpan(body).first(size)).ok());
  }
}

TEST(Frame, RandomBytesNeverParse) {
  std::mt19937_64 rng(20260101);
  std::vector<std::byte> bytes(sizeof(FrameHeader));
  for (int round = 0; round < 100000; ++round) {
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
    if (round % 2 == 0) std::memcpy(bytes.data(), &FrameHeader::kMagic, 4);
    ASSERT_FALSE(ParseFrameHeader(ByteSpan(bytes).first(rng() % (bytes.size() + 1))).ok());
  }
}

TEST(Address, ParsesWhatItPrints) {
  for (const char* text : {"tcp://127.0.0.1:0", "tcp://[::1]:65535", "tcp://[fe80::1%eth0]:1",
                           "tcp://some-host.example:7420", "unix:///run/penstock/penstock.sock"}) {
    const auto address = Address::Parse(text);
    ASSERT_TRUE(address.ok()) << address.status().ToString();
    EXPECT_EQ(address->ToString(), text);
  }
  EXPECT_EQ(Address::Parse("localhost:80")->ToString(), "tcp://localhost:80");
  EXPECT_EQ(Address::Parse("[::1]:80")->ToString(), "tcp://[::1]:80");
  EXPECT_EQ(Address::Parse("[::1]:80")->host, "::1");
}

TEST(Address, SaysWhatItExpected) {
  for (const std::string text : {"",         ":",
                                 "host",     "host:",
                                 ":80",      "host:65536",
                                 "host:-1",  "host:+1",
                                 "host: 1",  "host:1x",
                                 "::1:80",   "[::1:80",
                                 "[]:80",    "http://host:80",
                                 "tcp://",   "tcp:///path",
                                 "unix://",  "unix://relative",
                                 "ho st:80", "a/b:80"}) {
    const auto address = Address::Parse(text);
    ASSERT_EQ(address.status().code(), Code::kInvalidArgument) << text;
    EXPECT_NE(address.status().message().find("expected tcp://host:port"), std::string::npos);
  }
  EXPECT_FALSE(Address::Parse("unix:///" + std::string(108, 'x')).ok());
  EXPECT_FALSE(Address::Parse(std::string("ho\0st:80", 8)).ok());
  EXPECT_FALSE(Address::Parse(std::string("unix:///a\0b", 11)).ok());
}

}  // namespace
}  // namespace penstock
