// PageLayout: where the pages of one KV group lie, and what a chunk of it looks like.
//
// An engine keeps KV in pages: one a block and tensor. The layout knows bytes and strides only: no
// shapes, no dtypes, no engine. A chunk is the pages of `blocks_per_chunk` blocks, layer-major:
//
//   for each view, in order: for each block of the chunk: the page (page_bytes)
//
// so that a layer is one contiguous run of the chunk, which a reader can ask for on its own.
//
// Thread safety: immutable once made.

#ifndef PENSTOCK_CONNECTOR_CORE_PAGE_LAYOUT_H_
#define PENSTOCK_CONNECTOR_CORE_PAGE_LAYOUT_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/format/manifest.h"

namespace penstock {

// A block of the engine, as the engine numbers it.
using BlockId = int64_t;
// In the block list of a load: this block of the chunk is not wanted, its bytes go nowhere. (The
// edge of a sliding window may lie within a chunk.)
inline constexpr BlockId kSkippedBlock = -1;

// The pages of one layer (or of one of its planes) as they lie in a storage. The page of block b is
// page_bytes bytes at offset + b * block_stride.
struct PageView {
  uint32_t storage = 0;
  uint64_t offset = 0;
  uint64_t block_stride = 0;  // At least page_bytes; larger for padded or interleaved pages.
  uint64_t page_bytes = 0;
  uint16_t layer = 0;
};

// Memory that views lie in.
struct StorageRange {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
};

class PageLayout {
 public:
  // `storages` are those that the views name by position; they must stay mapped while pieces of
  // this layout are in use. Errors: kInvalidArgument, naming the view and what is wrong with it.
  static Result<PageLayout> Make(std::span<const StorageRange> storages, uint32_t blocks_per_chunk,
                                 std::span<const PageView> views);

  uint32_t blocks_per_chunk() const { return blocks_per_chunk_; }
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  // Bytes of one block over all views.
  uint64_t block_bytes() const { return block_bytes_; }
  // Block ids are below this: the whole page of every smaller id lies within every view's storage.
  BlockId block_limit() const { return block_limit_; }
  // Digest of the layout: what a chunk written through it looks like inside. Never 0. Storages,
  // offsets and strides do not count, so another process with other memory has the same tag.
  uint64_t tag() const { return tag_; }
  // One a run of views of the same layer. Checksums are zero.
  const std::vector<Segment>& segments() const { return segments_; }

  // Appends where the bytes of the chunk in `blocks` lie, in the order of the chunk, adjacent
  // pieces merged. A skipped block's bytes are taken from `skipped`, consecutively.
  // REQUIRES: blocks.size() == blocks_per_chunk(), every id is kSkippedBlock or in
  // [0, block_limit()); `skipped` has block_bytes() for every skipped block.
  void AppendPieces(std::span<const BlockId> blocks, std::byte* skipped,
                    std::vector<iovec>& pieces) const;

 private:
  struct Placed {  // A view with its storage's address worked in.
    std::byte* base;
    uint64_t block_stride;
    uint64_t page_bytes;
  };

  PageLayout() = default;

  uint32_t blocks_per_chunk_ = 0;
  uint64_t chunk_bytes_ = 0;
  uint64_t block_bytes_ = 0;
  BlockId block_limit_ = 0;
  uint64_t tag_ = 0;
  std::vector<Placed> views_;
  std::vector<Segment> segments_;
};

}  // namespace penstock

#endif  // PENSTOCK_CONNECTOR_CORE_PAGE_LAYOUT_H_
