#include "common/format/manifest.h"

#include <gtest/gtest.h>

#include <random>

#include "common/format/checksum.h"
#include "tests/unit/golden/golden.h"

namespace penstock {
namespace {

using ::penstock::testing::FromHex;
using ::penstock::testing::ReadGolden;
using Bytes = std::vector<std::byte>;

Bytes Golden(const std::string& name) {
  static const auto file = ReadGolden("manifests.json");
  return FromHex(file.at(name).get<std::string>());
}

Manifest Layered() {
  Manifest m;
  m.token_count = 256;
  m.tag = 0x0123456789ABCDEF;
  for (uint16_t layer = 0; layer < 4; ++layer) {
    m.segments.push_back({.kind = SegmentKind::kKv,
                          .layer_first = layer,
                          .layer_count = 1,
                          .logical_bytes = 1000u + layer,
                          .stored_bytes = 1000u + layer,
                          .checksum = 0x1111111111111111u * (layer + 1u)});
  }
  return m;
}

Manifest Planes() {
  Manifest m;
  m.flags = kManifestLossy | kManifestPositionFree;
  m.token_count = 3;
  m.segments = {{SegmentKind::kK, 3, 0, 32, 1 << 20, 1 << 19, 1},
                {SegmentKind::kV, 4, 0, 32, 1 << 20, 1 << 18, 2},
                {SegmentKind::kScales, kCodecRaw, 0, 0, 4096, 4096, 3}};
  m.positions = {7, 9, 4294967295};
  m.assets = {Digest256::Sha256({AsBytes("asset")})};
  return m;
}

// Gives a changed encoding a right checksum again: what a hostile writer would do.
Bytes Reseal(Bytes bytes) {
  std::memset(bytes.data() + 40, 0, 8);
  const uint64_t sum = PlainChecksum(ByteSpan(bytes));
  std::memcpy(bytes.data() + 40, &sum, 8);
  return bytes;
}

template <typename T>
Bytes Patched(Bytes bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
  return Reseal(std::move(bytes));
}

TEST(Manifest, EncodesTheGoldenBytes) {
  const ChunkKey key = Digest256::Sha256({AsBytes("golden")});
  Bytes payload(4096);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i);
  const Manifest plain = Manifest::Plain(payload.size(), ChunkChecksum(key, payload), 256);
  EXPECT_EQ(plain.Encode(), Golden("plain"));
  EXPECT_EQ(Layered().Encode(), Golden("layered"));
  EXPECT_EQ(Planes().Encode(), Golden("planes"));
}

TEST(Manifest, DecodesTheGoldenBytes) {
  EXPECT_EQ(*Manifest::Decode(Golden("layered")), Layered());
  EXPECT_EQ(*Manifest::Decode(Golden("planes")), Planes());
}

TEST(Manifest, SkipsFieldsThatALaterBuildAppends) {
  const Result<Manifest> later = Manifest::Decode(Golden("later"));
  ASSERT_TRUE(later.ok()) << later.status().ToString();
  EXPECT_EQ(*later, *Manifest::Decode(Golden("plain")));
}

TEST(Manifest, APlainOneTakesEightyBytes) {
  const Manifest plain = Manifest::Plain(1 << 20, 5, 256);
  EXPECT_EQ(plain.Encode().size(), 80u);
  EXPECT_EQ(plain.EncodedBytes(), 80u);
  EXPECT_EQ(plain.TotalStoredBytes(), 1u << 20);
}

TEST(Manifest, EncodeToAppendsBehindWhatIsThere) {
  ByteWriter out;
  out.U32(7);
  Layered().EncodeTo(out);
  EXPECT_EQ(*Manifest::Decode(out.bytes().subspan(4)), Layered());
}

TEST(Manifest, EveryChangedByteIsRejected) {
  for (const char* name : {"plain", "layered", "planes", "later"}) {
    const Bytes good = Golden(name);
    for (size_t i = 0; i < good.size(); ++i) {
      for (int flip = 1; flip < 256; ++flip) {
        Bytes bad = good;
        bad[i] ^= static_cast<std::byte>(flip);
        ASSERT_FALSE(Manifest::Decode(bad).ok()) << name << " byte " << i << " ^ " << flip;
      }
    }
  }
}

TEST(Manifest, EveryOtherLengthIsRejected) {
  for (const char* name : {"plain", "layered", "planes", "later"}) {
    Bytes bytes = Golden(name);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_EQ(Manifest::Decode(ByteSpan(bytes).first(size)).status().code(),
                Code::kCorruptMessage)
          << name << " cut to " << size;
    }
    bytes.push_back(std::byte{0});
    EXPECT_EQ(Manifest::Decode(bytes).status().code(), Code::kCorruptMessage) << name;
  }
}

TEST(Manifest, AnotherVersionIsSkewAndNotCorruption) {
  EXPECT_EQ(Manifest::Decode(Patched<uint16_t>(Golden("plain"), 4, 2)).status().code(),
            Code::kVersionSkew);
}

TEST(Manifest, UnknownFlagsAreKeptUnlessCritical) {
  const Result<Manifest> kept = Manifest::Decode(Patched<uint32_t>(Golden("plain"), 16, 1 << 15));
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept->flags, 1u << 15);
  EXPECT_EQ(Manifest::Decode(Patched<uint32_t>(Golden("plain"), 16, 1 << 16)).status().code(),
            Code::kVersionSkew);
}

TEST(Manifest, WellSealedNonsenseIsRejected) {
  const Bytes planes = Golden("planes");
  const auto rejects = [&](size_t offset, auto value) {
    const Result<Manifest> m = Manifest::Decode(Patched(planes, offset, value));
    return !m.ok() && m.status().code() == Code::kCorruptMessage;
  };
  EXPECT_TRUE(rejects(0, uint32_t{1}));              // Magic.
  EXPECT_TRUE(rejects(6, uint16_t{47}));             // Header shorter than version 1's.
  EXPECT_TRUE(rejects(6, uint16_t{65535}));          // Header longer than everything.
  EXPECT_TRUE(rejects(8, uint32_t{1}));              // Total length.
  EXPECT_TRUE(rejects(12, uint16_t{31}));            // Stride shorter than version 1's.
  EXPECT_TRUE(rejects(12, uint16_t{65535}));         // Stride beyond the end.
  EXPECT_TRUE(rejects(14, uint16_t{0}));             // No segment.
  EXPECT_TRUE(rejects(14, uint16_t{65535}));         // Segments beyond the end.
  EXPECT_TRUE(rejects(20, uint32_t{4}));             // Tokens that positions do not match.
  EXPECT_TRUE(rejects(32, uint32_t{0xFFFFFFFF}));    // Positions beyond the end.
  EXPECT_TRUE(rejects(36, uint32_t{0xFFFFFFFF}));    // Assets beyond the end.
  EXPECT_TRUE(rejects(48 + 4, uint16_t{65535}));     // Layers beyond 2^16.
  EXPECT_TRUE(rejects(48 + 8, ~uint64_t{0}));        // Logical lengths overflow.
  EXPECT_TRUE(rejects(48 + 16, ~uint64_t{0}));       // Stored lengths overflow.
  EXPECT_TRUE(rejects(48 + 16, uint64_t{1} << 63));  // Stored lengths reach 2^63.
}

TEST(Manifest, LimitsAreCheckedByWritersToo) {
  Manifest m;
  EXPECT_EQ(m.Validate().code(), Code::kInvalidArgument);  // No segment.
  m.segments.resize(Manifest::kMaxSegments);
  EXPECT_TRUE(m.Validate().ok());
  EXPECT_TRUE(Manifest::Decode(m.Encode()).ok());
  m.segments.resize(Manifest::kMaxSegments + 1);
  EXPECT_EQ(m.Validate().code(), Code::kInvalidArgument);
  EXPECT_FALSE(Manifest::Decode(m.Encode()).ok());

  m = Manifest::Plain(1, 1, 262'000);
  m.positions.resize(262'000);
  EXPECT_TRUE(m.Validate().ok());
  EXPECT_EQ(*Manifest::Decode(m.Encode()), m);
  m.token_count = 262'144;
  m.positions.resize(262'144);
  EXPECT_EQ(m.Validate().code(), Code::kInvalidArgument);  // Encoding over 1 MiB.
  EXPECT_FALSE(Manifest::Decode(m.Encode()).ok());

  m = Manifest::Plain(uint64_t{1} << 62, 1);
  EXPECT_TRUE(m.Validate().ok());
  m.segments.push_back(m.segments[0]);
  EXPECT_EQ(m.Validate().code(), Code::kInvalidArgument);  // 2^63 bytes.
}

TEST(Manifest, RandomWellFormedOnesRoundTrip) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 2000; ++i) {
    Manifest m;
    m.flags = rng() & 15;
    m.token_count = rng() % 50;
    m.tag = rng();
    m.segments.resize(1 + rng() % 8);
    for (Segment& s : m.segments) {
      s = {static_cast<SegmentKind>(rng() % 256),
           static_cast<uint16_t>(rng()),
           static_cast<uint16_t>(rng() % 60000),
           static_cast<uint16_t>(rng() % 5000),
           rng() >> 8,
           rng() >> 8,
           rng()};
    }
    if (rng() % 2 == 0) m.positions.resize(m.token_count, static_cast<uint32_t>(rng()));
    m.assets.resize(rng() % 3, Digest256::Sha256({AsBytes(std::to_string(i))}));
    const Result<Manifest> back = Manifest::Decode(m.Encode());
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    ASSERT_EQ(*back, m);
  }
}

// Random damage under a right checksum: Decode() may accept it, but what it accepts is valid and
// survives another round trip.
TEST(Manifest, SealedRandomDamageNeverYieldsAnInvalidManifest) {
  std::mt19937_64 rng(2);
  const Bytes seeds[] = {Golden("plain"), Golden("layered"), Golden("planes"), Golden("later")};
  int accepted = 0;
  for (int i = 0; i < 50'000; ++i) {
    Bytes bytes = seeds[rng() % 4];
    for (size_t n = 1 + rng() % 4; n > 0; --n) {
      bytes[rng() % bytes.size()] = static_cast<std::byte>(rng());
    }
    if (rng() % 4 == 0) bytes.resize(std::max<size_t>(48, rng() % bytes.size()));
    const auto size = static_cast<uint32_t>(bytes.size());
    if (rng() % 2 == 0) std::memcpy(bytes.data() + 8, &size, 4);
    const Result<Manifest> m = Manifest::Decode(Reseal(std::move(bytes)));
    if (!m.ok()) continue;
    ++accepted;
    ASSERT_TRUE(m->Validate().ok());
    ASSERT_EQ(*Manifest::Decode(m->Encode()), *m);
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_LT(accepted, 49'000);
}

}  // namespace
}  // namespace penstock
