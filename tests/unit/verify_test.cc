#include "common/format/verify.h"

#include <gtest/gtest.h>

#include <random>

#include "common/format/checksum.h"

namespace penstock {
namespace {

constexpr uint64_t kLengths[] = {100, 0, 1, 4000, 513};

// A chunk of five segments, one a layer, with its payload.
class VerifyTest : public ::testing::Test {
 protected:
  VerifyTest() {
    std::mt19937_64 rng(1);
    uint16_t layer = 0;
    for (const uint64_t length : kLengths) {
      std::vector<std::byte> bytes(length);
      for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
      manifest_.segments.push_back({.kind = SegmentKind::kKv,
                                    .layer_first = layer++,
                                    .layer_count = 1,
                                    .logical_bytes = length,
                                    .stored_bytes = length,
                                    .checksum = ChunkChecksum(key_, bytes)});
      payload_.insert(payload_.end(), bytes.begin(), bytes.end());
    }
  }

  // The payload from `offset` on, cut into pieces of random sizes, some of them empty.
  std::vector<iovec> Pieces(size_t offset, size_t length, uint64_t seed) {
    std::mt19937_64 rng(seed);
    std::vector<iovec> pieces;
    while (length > 0) {
      const size_t size = std::min<size_t>(length, rng() % 700);
      pieces.push_back({payload_.data() + offset, size});
      offset += size;
      length -= size;
    }
    return pieces;
  }
  Status Verify(const Selection& selection, const std::vector<iovec>& pieces) {
    return VerifySegments(key_, manifest_, selection, pieces);
  }

  const ChunkKey key_ = Digest256::Sha256({AsBytes("chunk")});
  Manifest manifest_;
  std::vector<std::byte> payload_;
};

TEST_F(VerifyTest, RightBytesPassHoweverTheyAreScattered) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    EXPECT_TRUE(Verify(Selection::All(), Pieces(0, payload_.size(), seed)).ok());
    EXPECT_TRUE(Verify(Selection::Layers(3, 1), Pieces(101, 4000, seed)).ok());
    EXPECT_TRUE(VerifySegment(key_, manifest_, 4, Pieces(4101, 513, seed)).ok());
  }
  EXPECT_TRUE(Verify(Selection::Layers(1, 1), {}).ok());  // The empty segment.
}

TEST_F(VerifyTest, EveryChangedByteIsFoundAndItsSegmentNamed) {
  for (size_t i = 0; i < payload_.size(); ++i) {
    payload_[i] ^= std::byte{0x10};
    const Status s = Verify(Selection::All(), {{payload_.data(), payload_.size()}});
    payload_[i] ^= std::byte{0x10};
    ASSERT_EQ(s.code(), Code::kChecksumMismatch) << i;
    const int segment = i < 100 ? 0 : i < 101 ? 2 : i < 4101 ? 3 : 4;
    EXPECT_NE(s.message().find("segment " + std::to_string(segment) + " of 5"), std::string::npos)
        << s.message();
    EXPECT_NE(s.message().find(key_.ToShortHex()), std::string::npos);
    EXPECT_EQ(s.message().find(key_.ToHex()), std::string::npos);
  }
}

TEST_F(VerifyTest, AnotherKeyDoesNotPass) {
  const ChunkKey other = Digest256::Sha256({AsBytes("other")});
  EXPECT_EQ(
      VerifySegments(other, manifest_, Selection::All(), Pieces(0, payload_.size(), 1)).code(),
      Code::kChecksumMismatch);
}

TEST_F(VerifyTest, MoreOrFewerBytesDoNotPassAndBothLengthsAreNamed) {
  payload_.resize(payload_.size() + 1);
  for (const size_t size : {size_t{0}, size_t{4613}, size_t{4615}}) {
    const Status s = Verify(Selection::All(), Pieces(0, size, 1));
    EXPECT_EQ(s.code(), Code::kChecksumMismatch) << size;
    EXPECT_NE(s.message().find(std::to_string(size) + " bytes, committed 4614"), std::string::npos)
        << s.message();
  }
  EXPECT_EQ(VerifySegment(key_, manifest_, 0, Pieces(0, 99, 1)).code(), Code::kChecksumMismatch);
}

TEST_F(VerifyTest, SwappedSegmentsDoNotPass) {
  const std::vector<iovec> swapped = {
      {payload_.data() + 101, 4000}, {payload_.data(), 101}, {payload_.data() + 4101, 513}};
  EXPECT_EQ(Verify(Selection::All(), swapped).code(), Code::kChecksumMismatch);
}

TEST_F(VerifyTest, NothingSelectedAndNoSuchSegmentAreNamed) {
  EXPECT_EQ(Verify(Selection::Layers(9, 1), {}).code(), Code::kFormatMismatch);
  EXPECT_EQ(VerifySegment(key_, manifest_, 5, {}).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace penstock
