// ExtentAllocator: never overlapping, always exact, and as good after a million operations as
// after one.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <thread>

#include "server/daemon/store/extent_allocator.h"

namespace penstock {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

uint64_t Sum(const ExtentList& extents) {
  uint64_t sum = 0;
  for (const Extent& extent : extents) sum += extent.bytes;
  return sum;
}

// Which bytes are handed out, by the test's own books.
class Ledger {
 public:
  void Take(const ExtentList& extents) {
    for (const Extent& extent : extents) {
      auto next = taken_.lower_bound(extent.offset);
      ASSERT_TRUE(next == taken_.end() || extent.offset + extent.bytes <= next->first);
      ASSERT_TRUE(next == taken_.begin() || std::prev(next)->second <= extent.offset);
      taken_[extent.offset] = extent.offset + extent.bytes;
      bytes_ += extent.bytes;
    }
  }
  void Return(const ExtentList& extents) {
    for (const Extent& extent : extents) {
      ASSERT_EQ(taken_.erase(extent.offset), 1u);
      bytes_ -= extent.bytes;
    }
  }
  uint64_t bytes() const { return bytes_; }

 private:
  std::map<uint64_t, uint64_t> taken_;
  uint64_t bytes_ = 0;
};

TEST(StoreAllocator, NothingNeedsNoExtent) {
  ExtentAllocator allocator(kMiB, 256, 64);
  ExtentList extents;
  EXPECT_TRUE(allocator.Allocate(0, extents));
  EXPECT_TRUE(extents.empty());
  allocator.Free(extents);
  EXPECT_EQ(allocator.free_bytes(), kMiB);
  EXPECT_EQ(allocator.CheckInvariants(), "");
}

TEST(StoreAllocator, TheWholeArenaIsOneAllocationAndOneByteMoreIsNone) {
  ExtentAllocator allocator(kMiB, 256, 64);
  ExtentList whole, more;
  EXPECT_FALSE(allocator.Allocate(kMiB + 1, whole));
  ASSERT_TRUE(allocator.Allocate(kMiB, whole));
  EXPECT_EQ(whole.size(), 1u);
  EXPECT_EQ(allocator.free_bytes(), 0u);
  EXPECT_FALSE(allocator.Allocate(1, more));
  EXPECT_TRUE(more.empty());
  allocator.Free(whole);
  EXPECT_EQ(allocator.GetStats().largest_free, kMiB);
  EXPECT_EQ(allocator.CheckInvariants(), "");
}

TEST(StoreAllocator, SizesThatOverflowAreRefused) {
  ExtentAllocator allocator(kMiB, 256, 64);
  ExtentList extents;
  for (const uint64_t bytes : {UINT64_MAX, UINT64_MAX - 255, uint64_t{1} << 63}) {
    EXPECT_FALSE(allocator.Allocate(bytes, extents));
  }
  EXPECT_EQ(allocator.free_bytes(), kMiB);
}

TEST(StoreAllocator, EverySizeIsRoundedUpToTheGranuleAndNoFurther) {
  ExtentAllocator allocator(kMiB, 256, 64);
  for (const uint64_t bytes : {1ull, 255ull, 256ull, 257ull, 4096ull, 4097ull, 70'001ull}) {
    ExtentList extents;
    ASSERT_TRUE(allocator.Allocate(bytes, extents));
    EXPECT_EQ(Sum(extents), (bytes + 255) / 256 * 256);
    EXPECT_EQ(allocator.free_bytes(), kMiB - Sum(extents));
    allocator.Free(extents);
  }
}

TEST(StoreAllocator, NeighboursMergeInEveryOrderOfFreeing) {
  std::vector<int> order = {0, 1, 2, 3, 4};
  do {
    ExtentAllocator allocator(5 * 4096, 256, 64);
    std::vector<ExtentList> pieces(5);
    for (ExtentList& piece : pieces) ASSERT_TRUE(allocator.Allocate(4096, piece));
    for (const int i : order) allocator.Free(pieces[i]);
    EXPECT_EQ(allocator.GetStats().free_blocks, 1u);
    EXPECT_EQ(allocator.GetStats().largest_free, 5u * 4096);
    EXPECT_EQ(allocator.CheckInvariants(), "");
  } while (std::next_permutation(order.begin(), order.end()));
}

// Every second block of a full arena is freed: no hole is larger than one block.
void MakeComb(ExtentAllocator& allocator, uint64_t tooth, std::vector<ExtentList>& kept) {
  std::vector<ExtentList> all(allocator.capacity() / tooth);
  for (ExtentList& one : all) ASSERT_TRUE(allocator.Allocate(tooth, one));
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % 2 == 0) {
      allocator.Free(all[i]);
    } else {
      kept.push_back(std::move(all[i]));
    }
  }
}

TEST(StoreAllocator, SplitsWhereNoSingleBlockFits) {
  ExtentAllocator allocator(kMiB, 256, 128);
  std::vector<ExtentList> kept;
  MakeComb(allocator, 8 * kKiB, kept);
  ExtentList split;
  ASSERT_TRUE(allocator.Allocate(kMiB / 2, split));  // All that is free, in 64 pieces.
  EXPECT_EQ(split.size(), 64u);
  EXPECT_EQ(Sum(split), kMiB / 2);
  EXPECT_EQ(allocator.free_bytes(), 0u);
  EXPECT_EQ(allocator.GetStats().split_allocations, 1u);
  EXPECT_EQ(allocator.CheckInvariants(), "");
}

TEST(StoreAllocator, TooManyPiecesIsARefusalThatTakesNothing) {
  ExtentAllocator allocator(kMiB, 256, 8);
  std::vector<ExtentList> kept;
  MakeComb(allocator, 8 * kKiB, kept);
  ExtentList extents;
  EXPECT_FALSE(allocator.Allocate(8 * 8 * kKiB + 1, extents));
  EXPECT_TRUE(extents.empty());
  EXPECT_EQ(allocator.free_bytes(), kMiB / 2);
  EXPECT_EQ(allocator.GetStats().fragmented_allocations, 1u);
  EXPECT_EQ(allocator.CheckInvariants(), "");
  EXPECT_TRUE(allocator.Allocate(8 * 8 * kKiB, extents));
}

TEST(StoreAllocatorDeathTest, FreeingTwiceStopsTheProcess) {
  ExtentAllocator allocator(kMiB, 256, 8);
  ExtentList extents;
  ASSERT_TRUE(allocator.Allocate(4096, extents));
  ExtentList copy = extents;
  allocator.Free(extents);
  EXPECT_DEATH(allocator.Free(copy), "CHECK");
}

struct Mix {
  const char* name;
  uint64_t smallest, largest;
  uint32_t max_extents;
  double least_use;  // Of the arena when an allocation is refused, on average.
};

class StoreAllocatorChurn : public testing::TestWithParam<Mix> {};

// A full arena, for a long time: allocate until it is refused, free some at random, again. Sizes
// are spread evenly over the orders of magnitude.
TEST_P(StoreAllocatorChurn, StaysExactAndUsesTheArenaToTheEnd) {
  const Mix mix = GetParam();
  constexpr uint64_t kArena = 512 * kMiB;
  constexpr int kSteps = 60'000;
  ExtentAllocator allocator(kArena, 256, mix.max_extents);
  std::mt19937_64 rng(20240607);
  std::uniform_real_distribution<double> exponent(std::log2(mix.smallest), std::log2(mix.largest));
  Ledger ledger;
  std::vector<ExtentList> live;
  double use = 0;
  uint64_t refused = 0, pieces = 0, allocations = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto bytes = static_cast<uint64_t>(std::exp2(exponent(rng)));
    const uint64_t free = allocator.free_bytes();
    ExtentList extents;
    if (allocator.Allocate(bytes, extents)) {
      ASSERT_EQ(Sum(extents), allocator.RoundUp(bytes));
      ASSERT_LE(extents.size(), mix.max_extents);
      ledger.Take(extents);
      pieces += extents.size();
      ++allocations;
      live.push_back(std::move(extents));
    } else {
      ASSERT_EQ(allocator.free_bytes(), free);
      use += 1 - static_cast<double>(free) / kArena;
      ++refused;
      for (int i = 0; i < 5 && !live.empty(); ++i) {
        std::swap(live[rng() % live.size()], live.back());
        ledger.Return(live.back());
        allocator.Free(live.back());
        live.pop_back();
      }
    }
    ASSERT_EQ(allocator.free_bytes(), kArena - ledger.bytes());
    if (step % 5000 == 0) {
      ASSERT_EQ(allocator.CheckInvariants(), "");
    }
  }
  const ExtentAllocator::Stats stats = allocator.GetStats();
  std::printf(
      "%s: %.1f %% of the arena used when refused (%llu times, %llu for fragmentation), "
      "%.2f extents an allocation, %.1f %% split\n",
      mix.name, 100 * use / refused, static_cast<unsigned long long>(refused),
      static_cast<unsigned long long>(stats.fragmented_allocations),
      static_cast<double>(pieces) / allocations, 100.0 * stats.split_allocations / allocations);
  EXPECT_GE(use / refused, mix.least_use);
  for (ExtentList& extents : live) allocator.Free(extents);
  EXPECT_EQ(allocator.GetStats().free_blocks, 1u);
  EXPECT_EQ(allocator.GetStats().largest_free, kArena);
  EXPECT_EQ(allocator.CheckInvariants(), "");
}

INSTANTIATE_TEST_SUITE_P(Mixes, StoreAllocatorChurn,
                         testing::Values(Mix{"Wide64", 4 * kKiB, 16 * kMiB, 64, 0.9},
                                         Mix{"Wide256", 4 * kKiB, 16 * kMiB, 256, 0.9},
                                         Mix{"Wide1024", 4 * kKiB, 16 * kMiB, 1024, 0.9},
                                         Mix{"WideUnsplit", 4 * kKiB, 16 * kMiB, 1, 0.5},
                                         Mix{"Large", 1 * kMiB, 16 * kMiB, 256, 0.9}),
                         [](const testing::TestParamInfo<Mix>& mix) {
                           return std::string(mix.param.name);
                         });

// Small chunks for a long time, then only large ones: the worst change of habits.
TEST(StoreAllocator, LargeChunksFollowSmallOnes) {
  constexpr uint64_t kArena = 256 * kMiB;
  ExtentAllocator allocator(kArena, 256, 1024);
  std::mt19937_64 rng(7);
  std::vector<ExtentList> small(kArena / (4 * kKiB));
  for (ExtentList& one : small) ASSERT_TRUE(allocator.Allocate(4 * kKiB, one));
  std::shuffle(small.begin(), small.end(), rng);
  ExtentList large;
  size_t freed = 0;
  while (!allocator.Allocate(4 * kMiB, large)) allocator.Free(small[freed++]);
  // In random order, exactly as many as it takes: 1024 pieces of 4 KiB.
  EXPECT_EQ(freed, 1024u);
  EXPECT_EQ(allocator.CheckInvariants(), "");
}

TEST(StoreAllocator, ThreadsShareItWithoutLosingAByte) {
  constexpr uint64_t kArena = 64 * kMiB;
  ExtentAllocator allocator(kArena, 256, 64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&allocator, t] {
      std::mt19937_64 rng(t);
      std::vector<ExtentList> live;
      for (int step = 0; step < 20'000; ++step) {
        ExtentList extents;
        if (rng() % 2 == 0 && allocator.Allocate(1 + rng() % (256 * kKiB), extents)) {
          live.push_back(std::move(extents));
        } else if (!live.empty()) {
          std::swap(live[rng() % live.size()], live.back());
          allocator.Free(live.back());
          live.pop_back();
        }
      }
      for (ExtentList& extents : live) allocator.Free(extents);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator.free_bytes(), kArena);
  EXPECT_EQ(allocator.GetStats().free_blocks, 1u);
  EXPECT_EQ(allocator.CheckInvariants(), "");
}

}  // namespace
}  // namespace penstock
