// The parts of the client that reckon with memory: what is mapped, pieces, and claimed ranges.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <random>
#include <vector>

#include "client/lib/memory_map.h"
#include "client/lib/piece_map.h"
#include "client/lib/range_set.h"

namespace penstock {
namespace {

using Access = MemoryMap::Access;
using Method = MemoryMap::Method;

// Pages of this process with whatever protection a test wants.
class Pages {
 public:
  explicit Pages(size_t count) : bytes_(count * PageSize()) {
    memory_ = static_cast<std::byte*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~Pages() { munmap(memory_, bytes_); }

  static size_t PageSize() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
  std::byte* at(size_t page) { return memory_ + page * PageSize(); }
  size_t size() const { return bytes_; }
  void Protect(size_t page, int protection) {
    ASSERT_EQ(mprotect(at(page), PageSize(), protection), 0);
  }
  void Unmap(size_t page) { ASSERT_EQ(munmap(at(page), PageSize()), 0); }

 private:
  std::byte* memory_;
  const size_t bytes_;
};

class MemoryMapTest : public testing::TestWithParam<Method> {
 protected:
  Code Check(void* start, size_t bytes, Access access) {
    const iovec piece{start, bytes};
    MemoryMap::Look look(map_, access);
    return look.Check({&piece, 1}).code();
  }
  MemoryMap map_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(EveryMethod, MemoryMapTest,
                         testing::Values(Method::kQuery, Method::kListing), [](const auto& method) {
                           return method.param == Method::kQuery ? "Query" : "Listing";
                         });

TEST_P(MemoryMapTest, MappedMemoryIsGoodFromItsFirstToItsLastByte) {
  Pages pages(4);
  EXPECT_EQ(Check(pages.at(0), pages.size(), Access::kRead), Code::kOk);
  EXPECT_EQ(Check(pages.at(0), pages.size(), Access::kWrite), Code::kOk);
  EXPECT_EQ(Check(pages.at(1) - 1, 2, Access::kWrite), Code::kOk);
}

TEST_P(MemoryMapTest, NullAndWrappingAddressesAreBad) {
  EXPECT_EQ(Check(nullptr, 1, Access::kRead), Code::kBadBuffer);
  EXPECT_EQ(Check(reinterpret_cast<void*>(UINTPTR_MAX - 10), 100, Access::kRead), Code::kBadBuffer);
  Pages pages(1);
  EXPECT_EQ(Check(pages.at(0), SIZE_MAX / 2, Access::kRead), Code::kBadBuffer);
}

TEST_P(MemoryMapTest, EmptyPiecesPassWhateverTheirAddress) {
  EXPECT_EQ(Check(nullptr, 0, Access::kRead), Code::kOk);
  EXPECT_EQ(Check(reinterpret_cast<void*>(1), 0, Access::kWrite), Code::kOk);
}

TEST_P(MemoryMapTest, OneByteOfAHoleIsEnoughToBeBad) {
  Pages pages(4);
  EXPECT_EQ(Check(pages.at(0), pages.size(), Access::kRead), Code::kOk);
  pages.Unmap(2);
  EXPECT_EQ(Check(pages.at(0), 2 * Pages::PageSize(), Access::kRead), Code::kOk);
  EXPECT_EQ(Check(pages.at(0), 2 * Pages::PageSize() + 1, Access::kRead), Code::kBadBuffer);
  EXPECT_EQ(Check(pages.at(3) - 1, 2, Access::kRead), Code::kBadBuffer);
  EXPECT_EQ(Check(pages.at(3), Pages::PageSize(), Access::kRead), Code::kOk);
}

TEST_P(MemoryMapTest, ReadOnlyMemoryIsReadableAndNotWritable) {
  Pages pages(3);
  pages.Protect(1, PROT_READ);
  EXPECT_EQ(Check(pages.at(0), pages.size(), Access::kRead), Code::kOk);
  EXPECT_EQ(Check(pages.at(0), pages.size(), Access::kWrite), Code::kBadBuffer);
  EXPECT_EQ(Check(pages.at(1), 1, Access::kWrite), Code::kBadBuffer);
}

TEST_P(MemoryMapTest, MemoryWithoutAccessIsBadBothWays) {
  Pages pages(3);
  pages.Protect(1, PROT_NONE);
  EXPECT_EQ(Check(pages.at(0), pages.size(), Access::kRead), Code::kBadBuffer);
  EXPECT_EQ(Check(pages.at(0), pages.size(), Access::kWrite), Code::kBadBuffer);
}

TEST_P(MemoryMapTest, MemoryMappedLaterIsFound) {
  Pages before(1);
  EXPECT_EQ(Check(before.at(0), 1, Access::kRead), Code::kOk);
  Pages after(64);
  EXPECT_EQ(Check(after.at(0), after.size(), Access::kWrite), Code::kOk);
}

TEST_P(MemoryMapTest, OneLookAnswersForManyPieces) {
  Pages pages(8);
  pages.Protect(7, PROT_READ);
  std::vector<iovec> pieces;
  for (size_t i = 0; i < 7; ++i) pieces.push_back({pages.at(i), Pages::PageSize()});
  MemoryMap::Look look(map_, Access::kWrite);
  EXPECT_TRUE(look.Check(pieces).ok());
  pieces.push_back({pages.at(7), 1});
  EXPECT_EQ(look.Check(pieces).code(), Code::kBadBuffer);
}

TEST(MemoryMap, WithoutProcOnlyNullIsBad) {
  MemoryMap map(Method::kTrust);
  MemoryMap::Look look(map, Access::kWrite);
  const iovec wild{reinterpret_cast<void*>(4096), 10}, null{nullptr, 10};
  EXPECT_TRUE(look.Check({&wild, 1}).ok());
  EXPECT_EQ(look.Check({&null, 1}).code(), Code::kBadBuffer);
}

TEST(PieceMap, SlicesAreWhatAFlatArrayWouldGive) {
  std::mt19937 random(7);
  std::vector<std::byte> memory(1000);
  for (int round = 0; round < 200; ++round) {
    std::vector<iovec> pieces;
    std::vector<std::byte*> flat;
    for (int i = 0, n = static_cast<int>(random() % 9); i < n; ++i) {
      std::byte* base = memory.data() + random() % 900;
      const size_t size = random() % 40;  // Also empty ones.
      pieces.push_back({base, size});
      for (size_t b = 0; b < size; ++b) flat.push_back(base + b);
    }
    PieceMap map(pieces);
    ASSERT_EQ(map.total(), flat.size());
    for (int i = 0; i < 20; ++i) {
      const uint64_t offset = random() % (flat.size() + 1);
      const uint64_t length = random() % (flat.size() - offset + 1);
      Pieces out;
      map.Slice(offset, length, out);
      std::vector<std::byte*> got;
      for (const iovec& piece : out) {
        ASSERT_GT(piece.iov_len, 0u);
        for (size_t b = 0; b < piece.iov_len; ++b) {
          got.push_back(static_cast<std::byte*>(piece.iov_base) + b);
        }
      }
      ASSERT_EQ(got,
                std::vector<std::byte*>(flat.begin() + offset, flat.begin() + offset + length));
    }
  }
}

TEST(RangeSet, EveryByteIsClaimedAtMostOnce) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    RangeSet set;
    std::vector<bool> taken(300);
    for (int i = 0; i < 100; ++i) {
      const size_t begin = random() % 300;
      const size_t end = begin + random() % (301 - begin) % 12;
      bool free = true;
      for (size_t b = begin; b < end; ++b) free = free && !taken[b];
      ASSERT_EQ(set.Claim(begin, end), free) << begin << ".." << end;
      if (free) std::fill(taken.begin() + begin, taken.begin() + end, true);
      size_t last = 0, prefix = 0;
      for (size_t b = 0; b < taken.size(); ++b) {
        if (taken[b]) last = b + 1;
      }
      while (prefix < taken.size() && taken[prefix]) ++prefix;
      ASSERT_EQ(set.end(), last);
      ASSERT_EQ(set.prefix(), prefix);
    }
  }
}

TEST(RangeSet, SeparateRangesAreBounded) {
  RangeSet set;
  for (size_t i = 0; i < RangeSet::kMaxRanges; ++i) ASSERT_TRUE(set.Claim(10 * i, 10 * i + 1));
  EXPECT_FALSE(set.Claim(100000, 100001));
  EXPECT_TRUE(set.Claim(1, 10));  // Joins two: room for another one.
  EXPECT_TRUE(set.Claim(100000, 100001));
}

}  // namespace
}  // namespace penstock
