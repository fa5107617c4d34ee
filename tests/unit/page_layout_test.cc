#include "connector/core/page_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace penstock {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> Storage(size_t bytes) { return std::vector<std::byte>(bytes); }

StorageRange RangeOf(std::vector<std::byte>& storage) { return {storage.data(), storage.size()}; }

std::vector<iovec> PiecesOf(const PageLayout& layout, const std::vector<BlockId>& blocks,
                            std::byte* skipped = nullptr) {
  std::vector<iovec> pieces;
  layout.AppendPieces(blocks, skipped, pieces);
  return pieces;
}

std::vector<std::byte> Gather(const std::vector<iovec>& pieces) {
  std::vector<std::byte> bytes;
  for (const iovec& piece : pieces) {
    const auto* begin = static_cast<const std::byte*>(piece.iov_base);
    bytes.insert(bytes.end(), begin, begin + piece.iov_len);
  }
  return bytes;
}

std::string ErrorOf(const Result<PageLayout>& layout) {
  EXPECT_FALSE(layout.ok());
  EXPECT_EQ(layout.status().code(), Code::kInvalidArgument);
  return layout.status().message();
}

TEST(PageLayoutTest, AChunkIsLayerMajorAndBlocksKeepTheirOrder) {
  auto storage = Storage(4 * 3 * 8);  // 4 blocks of 3 layers of 8 bytes, interleaved by block.
  for (size_t i = 0; i < storage.size(); ++i) storage[i] = std::byte(i);
  const std::vector<StorageRange> storages = {RangeOf(storage)};
  const std::vector<PageView> views = {{0, 0, 24, 8, 0}, {0, 8, 24, 8, 1}, {0, 16, 24, 8, 2}};
  const auto layout = PageLayout::Make(storages, 2, views);
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  EXPECT_EQ(layout->chunk_bytes(), 48u);
  EXPECT_EQ(layout->block_bytes(), 24u);
  EXPECT_EQ(layout->block_limit(), 4);

  std::vector<std::byte> expected;
  for (int layer = 0; layer < 3; ++layer) {
    for (const int block : {3, 1}) {
      for (int i = 0; i < 8; ++i) expected.push_back(std::byte(block * 24 + layer * 8 + i));
    }
  }
  EXPECT_EQ(Gather(PiecesOf(*layout, {3, 1})), expected);
}

TEST(PageLayoutTest, AdjacentPagesBecomeOnePiece) {
  auto storage = Storage(2 * 10 * 16);  // 2 layers, each 10 blocks of 16 bytes in a row.
  const std::vector<StorageRange> storages = {RangeOf(storage)};
  const std::vector<PageView> views = {{0, 0, 16, 16, 0}, {0, 160, 16, 16, 1}};
  const auto layout = PageLayout::Make(storages, 4, views);
  ASSERT_TRUE(layout.ok());

  const auto run = PiecesOf(*layout, {2, 3, 4, 5});
  ASSERT_EQ(run.size(), 2u);
  EXPECT_EQ(run[0].iov_base, storage.data() + 32);
  EXPECT_EQ(run[0].iov_len, 64u);
  EXPECT_EQ(run[1].iov_base, storage.data() + 160 + 32);

  EXPECT_EQ(PiecesOf(*layout, {2, 3, 5, 4}).size(), 6u);  // 2-3 | 5 | 4, twice.
  EXPECT_EQ(PiecesOf(*layout, {6, 7, 8, 9}).size(), 2u);  // The layers do not touch: 9 | 6.
  EXPECT_EQ(PiecesOf(*layout, {9, 0, 1, 2}).size(), 4u);
}

TEST(PageLayoutTest, PiecesOfTwoChunksAreNotMerged) {
  auto storage = Storage(4 * 16);
  const std::vector<StorageRange> storages = {RangeOf(storage)};
  const auto layout = PageLayout::Make(storages, 1, std::vector<PageView>{{0, 0, 16, 16, 0}});
  ASSERT_TRUE(layout.ok());
  std::vector<iovec> pieces;
  layout->AppendPieces(std::vector<BlockId>{1}, nullptr, pieces);
  layout->AppendPieces(std::vector<BlockId>{2}, nullptr, pieces);
  EXPECT_EQ(pieces.size(), 2u);
}

TEST(PageLayoutTest, PaddedPagesAreReadByStrideNotBySize) {
  auto storage = Storage(3 * 196);
  const std::vector<StorageRange> storages = {RangeOf(storage)};
  const auto layout = PageLayout::Make(storages, 2, std::vector<PageView>{{0, 0, 196, 134, 0}});
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->block_limit(), 3);
  const auto pieces = PiecesOf(*layout, {1, 2});
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[1].iov_base, storage.data() + 392);
  EXPECT_EQ(pieces[1].iov_len, 134u);
}

TEST(PageLayoutTest, ALastPageWithoutItsPaddingCounts) {
  auto storage = Storage(2 * 196 + 134);
  const std::vector<StorageRange> storages = {RangeOf(storage)};
  const std::vector<PageView> views = {{0, 0, 196, 134, 0}};
  EXPECT_EQ(PageLayout::Make(storages, 1, views)->block_limit(), 3);
  storage.pop_back();
  EXPECT_EQ(PageLayout::Make(std::vector<StorageRange>{RangeOf(storage)}, 1, views)->block_limit(),
            2);
}

TEST(PageLayoutTest, TheSmallestViewLimitsTheBlocks) {
  auto big = Storage(100 * 8);
  auto small = Storage(10 * 8);
  const std::vector<StorageRange> storages = {RangeOf(big), RangeOf(small)};
  const std::vector<PageView> views = {{0, 0, 8, 8, 0}, {1, 0, 8, 8, 1}};
  EXPECT_EQ(PageLayout::Make(storages, 1, views)->block_limit(), 10);
}

TEST(PageLayoutTest, SkippedBlocksTakeTheirBytesFromTheScratch) {
  auto storage = Storage(2 * 5 * 8);
  auto scratch = Storage(2 * 16);
  const std::vector<StorageRange> storages = {RangeOf(storage)};
  const std::vector<PageView> views = {{0, 0, 8, 8, 0}, {0, 40, 8, 8, 1}};
  const auto layout = PageLayout::Make(storages, 3, views);
  ASSERT_TRUE(layout.ok());
  const auto pieces = PiecesOf(*layout, {kSkippedBlock, 4, kSkippedBlock}, scratch.data());
  size_t total = 0;
  size_t in_scratch = 0;
  std::vector<char> used(scratch.size());
  for (const iovec& piece : pieces) {
    total += piece.iov_len;
    const auto* begin = static_cast<std::byte*>(piece.iov_base);
    if (begin >= scratch.data() && begin < scratch.data() + scratch.size()) {
      in_scratch += piece.iov_len;
      for (size_t i = 0; i < piece.iov_len; ++i) used[begin - scratch.data() + i] += 1;
    }
  }
  EXPECT_EQ(total, layout->chunk_bytes());
  EXPECT_EQ(in_scratch, scratch.size());
  // A checksum over the pieces is taken after they were filled, so none may lie over another.
  EXPECT_EQ(used, std::vector<char>(scratch.size(), 1));
}

TEST(PageLayoutTest, ASegmentIsALayer) {
  auto storage = Storage(1000);
  const std::vector<StorageRange> storages = {RangeOf(storage)};
  const std::vector<PageView> views = {{0, 0, 8, 8, 3}, {0, 100, 16, 16, 3}, {0, 500, 8, 8, 7}};
  const auto layout = PageLayout::Make(storages, 2, views);
  ASSERT_TRUE(layout.ok());
  const std::vector<Segment>& segments = layout->segments();
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].kind, SegmentKind::kKv);
  EXPECT_EQ(segments[0].layer_first, 3);
  EXPECT_EQ(segments[0].layer_count, 1);
  EXPECT_EQ(segments[0].stored_bytes, 48u);
  EXPECT_EQ(segments[1].layer_first, 7);
  EXPECT_EQ(segments[1].logical_bytes, 16u);
  uint64_t sum = 0;
  for (const Segment& segment : segments) sum += segment.stored_bytes;
  EXPECT_EQ(sum, layout->chunk_bytes());
}

TEST(PageLayoutTest, TheTagIsOfTheChunkNotOfTheMemory) {
  auto one = Storage(4096);
  auto other = Storage(8192);
  const std::vector<StorageRange> storages = {RangeOf(one), RangeOf(other)};
  const auto tag = [&](uint32_t blocks, const std::vector<PageView>& views) {
    const auto layout = PageLayout::Make(storages, blocks, views);
    EXPECT_TRUE(layout.ok()) << layout.status().ToString();
    return layout->tag();
  };
  const uint64_t base = tag(2, {{0, 0, 64, 64, 0}, {0, 1024, 64, 64, 1}});
  EXPECT_NE(base, 0u);
  EXPECT_EQ(tag(2, {{1, 128, 256, 64, 0}, {0, 0, 80, 64, 1}}), base);  // Other memory, same chunk.
  EXPECT_NE(tag(1, {{0, 0, 64, 64, 0}, {0, 1024, 64, 64, 1}}), base);  // Other blocks a chunk.
  EXPECT_NE(tag(2, {{0, 0, 64, 64, 1}, {0, 1024, 64, 64, 0}}), base);  // Other order of layers.
  EXPECT_NE(tag(2, {{0, 0, 64, 64, 0}, {0, 1024, 64, 64, 2}}), base);  // Other layers.
  EXPECT_NE(tag(2, {{0, 0, 32, 32, 0}, {0, 1024, 96, 96, 1}}), base);  // Same sum, other pages.
  EXPECT_NE(tag(2, {{0, 0, 128, 128, 0}}), base);
}

TEST(PageLayoutTest, BadViewsAreRefusedWithTheReason) {
  auto storage = Storage(1024);
  const std::vector<StorageRange> storages = {RangeOf(storage)};
  const auto make = [&](uint32_t blocks, const std::vector<PageView>& views) {
    return ErrorOf(PageLayout::Make(storages, blocks, views));
  };
  const PageView good = {0, 0, 64, 64, 0};
  EXPECT_THAT(make(0, {good}), HasSubstr("blocks_per_chunk is 0"));
  EXPECT_THAT(make(1u << 31, {good}), HasSubstr("blocks_per_chunk"));
  EXPECT_THAT(make(1, {}), HasSubstr("0 page views"));
  EXPECT_THAT(make(1, std::vector<PageView>(5000, good)), HasSubstr("5000 page views"));
  EXPECT_THAT(make(1, {good, {1, 0, 64, 64, 0}}), HasSubstr("page view 1: there is no storage 1"));
  EXPECT_THAT(make(1, {{0, 0, 64, 0, 0}}), HasSubstr("page_bytes is 0"));
  EXPECT_THAT(make(1, {{0, 0, 63, 64, 0}}), HasSubstr("pages overlap"));
  EXPECT_THAT(make(1, {{0, 0, 0, 64, 0}}), HasSubstr("pages overlap"));
  EXPECT_THAT(make(1, {{0, 961, 64, 64, 0}}), HasSubstr("not even block 0"));
  EXPECT_THAT(make(1, {{0, UINT64_MAX - 8, 64, 64, 0}}), HasSubstr("not even block 0"));
  EXPECT_THAT(make(1, {{0, 0, UINT64_MAX, UINT64_MAX, 0}}), HasSubstr("page_bytes"));
  EXPECT_TRUE(PageLayout::Make(storages, 1, std::vector<PageView>{{0, 960, 64, 64, 0}}).ok());
  EXPECT_EQ(PageLayout::Make(storages, 1, std::vector<PageView>{{0, 0, UINT64_MAX, 64, 0}})
                ->block_limit(),
            1);
}

// For random layouts and blocks, gathering the pieces equals copying page by page, and every piece
// lies within its storage.
TEST(PageLayoutTest, PiecesAreThePagesForRandomLayouts) {
  std::mt19937 random(20261129);
  const auto pick = [&](uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<std::vector<std::byte>> memory(pick(1, 3));
    std::vector<StorageRange> storages;
    for (auto& storage : memory) {
      storage.resize(pick(2000, 6000));
      for (auto& byte : storage) byte = std::byte(pick(0, 255));
      storages.push_back(RangeOf(storage));
    }
    std::vector<PageView> views(pick(1, 6));
    for (size_t i = 0; i < views.size(); ++i) {
      const uint64_t page = pick(1, 100);
      const uint64_t stride = page + (pick(0, 1) == 0 ? 0 : pick(0, 60));
      views[i] = {static_cast<uint32_t>(pick(0, memory.size() - 1)), pick(0, 300), stride, page,
                  static_cast<uint16_t>(i / 2)};
    }
    const uint32_t blocks_per_chunk = static_cast<uint32_t>(pick(1, 5));
    const auto layout = PageLayout::Make(storages, blocks_per_chunk, views);
    ASSERT_TRUE(layout.ok()) << layout.status().ToString();
    std::vector<BlockId> blocks(blocks_per_chunk);
    for (BlockId& block : blocks) block = static_cast<BlockId>(pick(0, layout->block_limit() - 1));
    std::vector<std::byte> expected;
    for (const PageView& view : views) {
      for (const BlockId block : blocks) {
        const size_t at = view.offset + block * view.block_stride;
        ASSERT_LE(at + view.page_bytes, memory[view.storage].size());
        const auto begin = memory[view.storage].begin() + static_cast<ptrdiff_t>(at);
        expected.insert(expected.end(), begin, begin + static_cast<ptrdiff_t>(view.page_bytes));
      }
    }
    ASSERT_EQ(Gather(PiecesOf(*layout, blocks)), expected);
    ASSERT_EQ(expected.size(), layout->chunk_bytes());
  }
}

}  // namespace
}  // namespace penstock
