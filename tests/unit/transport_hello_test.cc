#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "common/transport/hello.h"
#include "common/transport/message_assembler.h"

namespace penstock {
namespace {

std::string Hex(ByteSpan bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<int>(b) >> 4];
    text += kDigits[static_cast<int>(b) & 15];
  }
  return text;
}

Hello SampleHello() {
  Hello hello;
  hello.version_min = 1;
  hello.version_max = 2;
  hello.streams = 3;
  hello.incarnation = 0x1122334455667788;
  hello.max_in_flight = 4;
  hello.software = "p 1";
  hello.tenant = "t";
  hello.client_name = "";
  hello.wires = {"ucx", "tcp"};
  return hello;
}

HelloReply SampleReply() {
  HelloReply reply;
  reply.status = 6;
  reply.version = 1;
  reply.version_min = 1;
  reply.version_max = 2;
  reply.incarnation = 0x0102030405060708;
  reply.token.fill(0xee);
  reply.streams = 2;
  reply.max_in_flight = 64;
  reply.max_chunk_bytes = 1u << 20;
  reply.eager_bytes = 65536;
  reply.ucx_port = 7421;
  reply.software = "p 1";
  reply.wire = "tcp";
  reply.message = "no";
  reply.ucx_host = "h";
  return reply;
}

// What docs/formats/wire.md describes.
TEST(Hello, BodiesHaveTheBytesOfTheFormat) {
  EXPECT_EQ(Hex(EncodeHello(SampleHello())),
            "1c000000"          // fixed_bytes
            "0100"              // version_min
            "0200"              // version_max
            "03000000"          // streams
            "8877665544332211"  // incarnation
            "04000000"          // max_in_flight
            "02000000"          // wires
            "0300702031"        // software
            "010074"            // tenant
            "0000"              // client_name
            "0300756378"        // wires[0]
            "0300746370");      // wires[1]
  EXPECT_EQ(Hex(EncodeHelloReply(SampleReply())),
            "3a000000"
            "0600010001000200"
            "0807060504030201"
            "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"
            "02000000"
            "40000000"
            "0000100000000000"
            "00000100"
            "fd1c"
            "0300702031"
            "0300746370"
            "02006e6f"
            "010068");
  SessionToken token;
  token.fill(0x11);
  EXPECT_EQ(Hex(EncodeAttach({token, 5})),
            "1800000011111111111111111111111111111111"
            "05000000");
  EXPECT_EQ(Hex(EncodeVerdict(Status(Code::kFenced, "no"))),
            "060000000b00"
            "02006e6f");
}

TEST(Hello, ParsingGivesBackWhatWasEncoded) {
  const auto hello = ParseHello(EncodeHello(SampleHello()));
  ASSERT_TRUE(hello.ok());
  EXPECT_EQ(EncodeHello(*hello), EncodeHello(SampleHello()));
  EXPECT_EQ(hello->wires, SampleHello().wires);
  const auto reply = ParseHelloReply(EncodeHelloReply(SampleReply()));
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(EncodeHelloReply(*reply), EncodeHelloReply(SampleReply()));
  EXPECT_EQ(reply->ucx_port, 7421);
  const auto verdict = ParseVerdict(EncodeVerdict(Status(Code::kBusy, "later")));
  ASSERT_TRUE(verdict.ok());
  EXPECT_EQ(verdict->status, 6);
  EXPECT_EQ(verdict->message, "later");
}

template <typename Parse>
void ExpectEveryTruncationFails(const std::vector<std::byte>& body, Parse parse) {
  for (size_t size = 0; size < body.size(); ++size) {
    EXPECT_EQ(parse(ByteSpan(body).first(size)).status().code(), Code::kCorruptMessage) << size;
  }
}

TEST(Hello, TruncatedBodiesAreRefused) {
  ExpectEveryTruncationFails(EncodeHello(SampleHello()), ParseHello);
  ExpectEveryTruncationFails(EncodeHelloReply(SampleReply()), ParseHelloReply);
  ExpectEveryTruncationFails(EncodeAttach({}), ParseAttach);
  ExpectEveryTruncationFails(EncodeVerdict(Status(Code::kBusy, "x")), ParseVerdict);
}

TEST(Hello, LongerBodiesOfNewerPeersAreUnderstood) {
  auto body = EncodeHelloReply(SampleReply());
  uint32_t fixed = 0;
  std::memcpy(&fixed, body.data(), sizeof(fixed));
  body.insert(body.begin() + fixed, 12, std::byte{0x77});
  fixed += 12;
  std::memcpy(body.data(), &fixed, sizeof(fixed));
  body.insert(body.end(), 50, std::byte{0x01});
  const auto reply = ParseHelloReply(body);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(EncodeHelloReply(*reply), EncodeHelloReply(SampleReply()));
}

TEST(Hello, AFixedPartOfAWrongSizeIsRefused) {
  for (const uint32_t fixed : {0u, 4u, 27u, 1000000u, 0xffffffffu}) {
    auto body = EncodeHello(SampleHello());
    std::memcpy(body.data(), &fixed, sizeof(fixed));
    EXPECT_FALSE(ParseHello(body).ok()) << fixed;
  }
}

TEST(Hello, LongStringsAreCutBySendersAndRefusedByReceivers) {
  Hello hello = SampleHello();
  hello.tenant = std::string(5000, 't');
  hello.wires = std::vector<std::string>(100, "w");
  const auto parsed = ParseHello(EncodeHello(hello));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->tenant, std::string(kMaxHelloString, 't'));
  EXPECT_EQ(parsed->wires.size(), kMaxHelloWires);
  // A sender that does not cut.
  ByteWriter body;
  body.U32(6).U16(0).U16(1025).Append(AsBytes(std::string(1025, 'x')));
  EXPECT_FALSE(ParseVerdict(body.bytes()).ok());
}

TEST(Hello, ARangeOfVersionsThatIsUpsideDownIsRefused) {
  Hello hello = SampleHello();
  hello.version_min = 3;
  EXPECT_FALSE(ParseHello(EncodeHello(hello)).ok());
}

TEST(Hello, VersionsMeetAtTheSmallerOfTheNewest) {
  EXPECT_EQ(AgreeOnVersion(1, 1, "x").value(), 1);
  EXPECT_EQ(AgreeOnVersion(1, 99, "x").value(), kProtocolVersion);
  EXPECT_EQ(AgreeOnVersion(0, 1, "x").value(), 1);
  for (const auto& [low, high] : {std::pair{0, 0}, std::pair{2, 5}}) {
    const auto agreed = AgreeOnVersion(low, high, "other 3.1");
    EXPECT_EQ(agreed.status().code(), Code::kVersionSkew);
    EXPECT_NE(agreed.status().message().find("other 3.1 speaks " + std::to_string(low)),
              std::string::npos);
  }
}

TEST(Hello, DamagedBodiesNeverDoHarm) {
  std::mt19937_64 rng(7);
  for (int round = 0; round < 50000; ++round) {
    auto body = round % 2 == 0 ? EncodeHello(SampleHello()) : EncodeHelloReply(SampleReply());
    for (int i = 0; i < 3; ++i) body[rng() % body.size()] = static_cast<std::byte>(rng());
    body.resize(rng() % (body.size() + 1));
    if (const auto hello = ParseHello(body); hello.ok()) {
      EXPECT_LE(hello->wires.size(), kMaxHelloWires);
      EXPECT_LE(hello->version_min, hello->version_max);
    }
    [[maybe_unused]] const auto reply = ParseHelloReply(body);
    [[maybe_unused]] const auto attach = ParseAttach(body);
    [[maybe_unused]] const auto verdict = ParseVerdict(body);
  }
}

std::vector<std::byte> Message(MessageType type, std::string_view body) {
  const FrameHeader header = MakeFrameHeader(type, body.size(), static_cast<uint32_t>(body.size()));
  ByteWriter out;
  out.Write(header).Append(AsBytes(body));
  return out.Release();
}

TEST(MessageAssembler, MessagesComeOutHoweverTheStreamIsCut) {
  std::vector<std::byte> stream;
  std::vector<std::string> bodies;
  std::mt19937_64 rng(8);
  for (int i = 0; i < 300; ++i) {
    bodies.emplace_back(i % 7 == 0 ? 0 : rng() % 3000, static_cast<char>('a' + i % 26));
    const auto message = Message(MessageType::kStore, bodies.back());
    stream.insert(stream.end(), message.begin(), message.end());
  }
  for (int round = 0; round < 50; ++round) {
    MessageAssembler assembler;
    std::vector<std::string> got;
    for (ByteSpan rest = stream; !rest.empty();) {
      const size_t take = std::min<size_t>(rest.size(), 1 + rng() % (round < 25 ? 40 : 100000));
      ASSERT_TRUE(assembler
                      .Feed(rest.first(take),
                            [&](const FrameHeader& header, ByteSpan body) {
                              EXPECT_EQ(header.request_id, body.size());
                              got.emplace_back(AsText(body));
                              return true;
                            })
                      .ok());
      rest = rest.subspan(take);
    }
    EXPECT_EQ(got, bodies);
    EXPECT_FALSE(assembler.InMessage());
  }
}

TEST(MessageAssembler, MissingBytesReadExactlyOneMessage) {
  auto stream = Message(MessageType::kHello, "0123456789");
  const size_t one = stream.size();
  stream.insert(stream.end(), 100, std::byte{0xff});
  MessageAssembler assembler;
  size_t at = 0;
  bool whole = false;
  while (!whole) {
    const size_t want = assembler.missing_bytes();
    ASSERT_GT(want, 0u);
    ASSERT_TRUE(assembler
                    .Feed(ByteSpan(stream).subspan(at, want),
                          [&](const FrameHeader&, ByteSpan) {
                            whole = true;
                            return false;
                          })
                    .ok());
    at += want;
  }
  EXPECT_EQ(at, one);
}

TEST(MessageAssembler, ABodyOverItsLimitIsRefusedWithItsHeader) {
  MessageAssembler assembler(/*max_body_bytes=*/1000);
  const auto header = MakeFrameHeader(MessageType::kHello, 0, 1001);
  const Status status =
      assembler.Feed({reinterpret_cast<const std::byte*>(&header), sizeof(header)},
                     [](const FrameHeader&, ByteSpan) { return true; });
  EXPECT_EQ(status.code(), Code::kTooLarge);
}

}  // namespace
}  // namespace penstock
