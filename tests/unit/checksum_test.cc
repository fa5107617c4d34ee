#include "common/format/checksum.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <random>
#include <set>
#include <vector>

#include "common/format/checksum_kernel.h"

namespace penstock {
namespace {

std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
  return bytes;
}

ChunkKey Key(std::string_view text) { return Digest256::Sha256({AsBytes(text)}); }

std::vector<const internal::ChecksumKernel*> Kernels() {
  const internal::ChecksumKernel* kernels[3];
  const size_t count = internal::AvailableChecksumKernels(kernels);
  return {kernels, kernels + count};
}

// Lengths around every branch of XXH3: short inputs, 240 bytes, stripes, blocks of 1 KiB.
std::vector<size_t> Lengths() {
  std::vector<size_t> lengths;
  for (size_t i = 0; i <= 600; ++i) lengths.push_back(i);
  for (const size_t near : {1024, 2048, 4096, 65536, 1 << 20}) {
    for (size_t d = 0; d < 3; ++d) lengths.push_back(near - 1 + d);
  }
  return lengths;
}

std::vector<iovec> Cut(std::vector<std::byte>& bytes, size_t pieces, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::set<size_t> cuts = {bytes.size()};
  while (cuts.size() < std::min(pieces, bytes.size())) cuts.insert(rng() % (bytes.size() + 1));
  std::vector<iovec> out;
  size_t at = 0;
  for (const size_t cut : cuts) {
    out.push_back({bytes.data() + at, cut - at});
    at = cut;
  }
  return out;
}

TEST(ChecksumKernels, EveryVariantOfThisMachineAgreesWithTheLibrary) {
  std::vector<std::byte> bytes = RandomBytes((1 << 20) + 2, 1);
  for (const internal::ChecksumKernel* kernel : Kernels()) {
    SCOPED_TRACE(kernel->name);
    RecordProperty("kernel", kernel->name);
    for (const size_t length : Lengths()) {
      for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, length * 77777}) {
        const uint64_t want = XXH3_64bits_withSeed(bytes.data(), length, seed);
        ASSERT_EQ(kernel->hash(bytes.data(), length, seed), want) << length;
        // Unaligned, and in two pieces, which takes the streaming path.
        const size_t half = length / 2;
        const iovec pieces[] = {{bytes.data(), half}, {bytes.data() + half, length - half}};
        ASSERT_EQ(kernel->hash_pieces(pieces, 2, seed), want) << length;
      }
    }
  }
}

TEST(ChecksumKernels, UnalignedMemoryGivesTheSameResult) {
  std::vector<std::byte> bytes = RandomBytes(5000, 2);
  std::vector<std::byte> copy(bytes.size() + 64);
  for (const internal::ChecksumKernel* kernel : Kernels()) {
    for (size_t shift = 0; shift < 64; ++shift) {
      std::memcpy(copy.data() + shift, bytes.data(), bytes.size());
      EXPECT_EQ(kernel->hash(copy.data() + shift, bytes.size(), 9),
                kernel->hash(bytes.data(), bytes.size(), 9));
    }
  }
}

TEST(ChecksumKernels, AStateCanBeUsedAgainWithAnotherSeed) {
  const std::vector<std::byte> bytes = RandomBytes(3000, 3);
  for (const internal::ChecksumKernel* kernel : Kernels()) {
    internal::ChecksumState state;
    for (const uint64_t seed : {5, 0, 6}) {
      kernel->reset(&state, seed);
      kernel->update(&state, bytes.data(), bytes.size());
      EXPECT_EQ(kernel->digest(&state), XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed));
    }
  }
}

TEST(ChunkChecksum, IsXxh3SeededWithKeyAndLength) {
  const std::vector<std::byte> bytes = RandomBytes(12345, 4);
  const ChunkKey key = Key("k");
  const uint64_t seed = key.Word() ^ (uint64_t{12345} * 0x9E3779B97F4A7C15);
  EXPECT_EQ(ChunkChecksum(key, bytes), XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed));
  EXPECT_EQ(PlainChecksum(bytes), XXH3_64bits(bytes.data(), bytes.size()));
}

TEST(ChunkChecksum, WholeScatteredAndStreamedAgree) {
  const ChunkKey key = Key("k");
  for (const size_t length : Lengths()) {
    std::vector<std::byte> bytes = RandomBytes(length, length);
    const uint64_t whole = ChunkChecksum(key, bytes);
    for (const size_t count : {1, 2, 7, 40}) {
      const std::vector<iovec> pieces = Cut(bytes, count, length + count);
      EXPECT_EQ(ChunkChecksum(key, pieces), whole) << length << " in " << pieces.size();
      ChecksumStream stream(key, length);
      for (const iovec& p : pieces) {
        stream.Update({static_cast<const std::byte*>(p.iov_base), p.iov_len});
      }
      EXPECT_EQ(stream.Finish(), whole) << length << " in " << pieces.size();
    }
  }
}

TEST(ChunkChecksum, EmptyPiecesAndNullPointersCountForNothing) {
  std::vector<std::byte> bytes = RandomBytes(500, 5);
  const ChunkKey key = Key("k");
  const iovec pieces[] = {{nullptr, 0}, {bytes.data(), 500}, {nullptr, 0}};
  EXPECT_EQ(ChunkChecksum(key, pieces), ChunkChecksum(key, bytes));
  EXPECT_EQ(ChunkChecksum(key, std::span<const iovec>()), ChunkChecksum(key, ByteSpan()));
  EXPECT_EQ(ChecksumStream(key, 0).Finish(), ChunkChecksum(key, ByteSpan()));
}

TEST(ChunkChecksum, AnotherKeyLengthOrByteChangesIt) {
  std::vector<std::byte> bytes = RandomBytes(300, 6);
  const uint64_t sum = ChunkChecksum(Key("a"), bytes);
  EXPECT_NE(ChunkChecksum(Key("b"), bytes), sum);
  EXPECT_NE(ChunkChecksum(Key("a"), ByteSpan(bytes).first(299)), sum);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{1};
    EXPECT_NE(ChunkChecksum(Key("a"), bytes), sum) << i;
    bytes[i] ^= std::byte{1};
  }
}

TEST(ChecksumStream, AShorterOrLongerStreamThanAnnouncedDoesNotVerify) {
  const std::vector<std::byte> bytes = RandomBytes(1000, 7);
  const ChunkKey key = Key("k");
  for (const uint64_t announced : {999, 1001, 0}) {
    ChecksumStream stream(key, announced);
    stream.Update(bytes);
    EXPECT_NE(stream.Finish(), ChunkChecksum(key, bytes));
    EXPECT_NE(stream.Finish(),
              ChunkChecksum(key, ByteSpan(bytes).first(std::min<size_t>(announced, 1000))));
  }
}

TEST(ChecksumStream, SurvivesAMoveAndGoesOnAfterFinish) {
  const std::vector<std::byte> bytes = RandomBytes(2000, 8);
  const ChunkKey key = Key("k");
  ChecksumStream a(key, 2000);
  a.Update(ByteSpan(bytes).first(700));
  (void)a.Finish();
  ChecksumStream b = std::move(a);
  b.Update(ByteSpan(bytes).subspan(700));
  EXPECT_EQ(b.Finish(), ChunkChecksum(key, bytes));
  a = ChecksumStream(key, 2000);
  a.Update(bytes);
  EXPECT_EQ(a.Finish(), ChunkChecksum(key, bytes));
}

}  // namespace
}  // namespace penstock
