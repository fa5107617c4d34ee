#include "connector/core/page_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "common/base/bytes.h"
#include "common/format/checksum.h"

namespace penstock {
namespace {

constexpr size_t kMaxViews = Manifest::kMaxSegments;
constexpr uint32_t kMaxBlocksPerChunk = 1u << 16;
// Keeps every product below free of overflow: views * blocks * page < 2^12 * 2^16 * 2^34.
constexpr uint64_t kMaxPageBytes = uint64_t{1} << 34;

Status BadView(size_t index, const std::string& what) {
  return Status(Code::kInvalidArgument, fmt::format("page view {}: {}", index, what));
}

Status CheckView(std::span<const StorageRange> storages, size_t index, const PageView& view) {
  if (view.storage >= storages.size()) {
    return BadView(index, fmt::format("there is no storage {}", view.storage));
  }
  if (view.page_bytes == 0 || view.page_bytes > kMaxPageBytes) {
    return BadView(index,
                   fmt::format("page_bytes is {}, not in 1..{}", view.page_bytes, kMaxPageBytes));
  }
  if (view.block_stride < view.page_bytes) {
    return BadView(index, fmt::format("block_stride {} is less than page_bytes {}: pages overlap",
                                      view.block_stride, view.page_bytes));
  }
  const uint64_t bytes = storages[view.storage].bytes;
  if (view.offset > bytes || view.page_bytes > bytes - view.offset) {
    return BadView(index, fmt::format("not even block 0 ({} bytes at {}) lies within storage {} "
                                      "({} bytes)",
                                      view.page_bytes, view.offset, view.storage, bytes));
  }
  return Status::Ok();
}

// Blocks whose page lies whole within the view's storage. REQUIRES: CheckView().
BlockId BlocksOf(const StorageRange& storage, const PageView& view) {
  const uint64_t room = storage.bytes - view.offset - view.page_bytes;
  const uint64_t blocks = room / view.block_stride + 1;
  return static_cast<BlockId>(std::min<uint64_t>(blocks, std::numeric_limits<BlockId>::max()));
}

std::vector<Segment> SegmentsOf(std::span<const PageView> views, uint32_t blocks_per_chunk) {
  std::vector<Segment> segments;
  for (const PageView& view : views) {
    if (segments.empty() || segments.back().layer_first != view.layer) {
      segments.push_back({.kind = SegmentKind::kKv, .layer_first = view.layer, .layer_count = 1});
    }
    segments.back().logical_bytes += view.page_bytes * blocks_per_chunk;
    segments.back().stored_bytes = segments.back().logical_bytes;
  }
  return segments;
}

uint64_t TagOf(std::span<const PageView> views, uint32_t blocks_per_chunk) {
  ByteWriter out;
  out.Append(AsBytes("penstock.pages.v1")).U32(blocks_per_chunk);
  out.U32(static_cast<uint32_t>(views.size()));
  for (const PageView& view : views) out.U64(view.page_bytes).U16(view.layer);
  const uint64_t tag = PlainChecksum(out.bytes());
  return tag == 0 ? 1 : tag;  // In a manifest, 0 stands for "no tag".
}

}  // namespace

Result<PageLayout> PageLayout::Make(std::span<const StorageRange> storages,
                                    uint32_t blocks_per_chunk, std::span<const PageView> views) {
  if (blocks_per_chunk == 0 || blocks_per_chunk > kMaxBlocksPerChunk) {
    return Status(Code::kInvalidArgument, fmt::format("blocks_per_chunk is {}, not in 1..{}",
                                                      blocks_per_chunk, kMaxBlocksPerChunk));
  }
  if (views.empty() || views.size() > kMaxViews) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} page views, not in 1..{}", views.size(), kMaxViews));
  }
  PageLayout layout;
  layout.blocks_per_chunk_ = blocks_per_chunk;
  layout.block_limit_ = std::numeric_limits<BlockId>::max();
  layout.views_.reserve(views.size());
  for (size_t i = 0; i < views.size(); ++i) {
    const PageView& view = views[i];
    PENSTOCK_RETURN_IF_ERROR(CheckView(storages, i, view));
    const StorageRange& storage = storages[view.storage];
    layout.block_limit_ = std::min(layout.block_limit_, BlocksOf(storage, view));
    layout.block_bytes_ += view.page_bytes;
    layout.views_.push_back({storage.data + view.offset, view.block_stride, view.page_bytes});
  }
  layout.chunk_bytes_ = layout.block_bytes_ * blocks_per_chunk;
  layout.segments_ = SegmentsOf(views, blocks_per_chunk);
  layout.tag_ = TagOf(views, blocks_per_chunk);
  return layout;
}

void PageLayout::AppendPieces(std::span<const BlockId> blocks, std::byte* skipped,
                              std::vector<iovec>& pieces) const {
  const size_t first = pieces.size();
  for (const Placed& view : views_) {
    for (const BlockId block : blocks) {
      std::byte* page = skipped;
      if (block == kSkippedBlock) {
        skipped += view.page_bytes;
      } else {
        page = view.base + static_cast<uint64_t>(block) * view.block_stride;
      }
      if (pieces.size() > first) {
        iovec& last = pieces.back();
        if (static_cast<std::byte*>(last.iov_base) + last.iov_len == page) {
          last.iov_len += view.page_bytes;
          continue;
        }
      }
      pieces.push_back({page, view.page_bytes});
    }
  }
}

}  // namespace penstock
