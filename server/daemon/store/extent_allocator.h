// ExtentAllocator: hands out pieces of an arena and takes them back, for chunks of any size, for
// years.
//
// Two-level segregated good fit with immediate coalescing: a free block lies in a list of its size
// class (32 classes an octave), two bitmaps find the smallest class that surely fits, and freeing
// merges with both neighbours at once, so that no cleaning is ever needed. Where no single block is
// large enough, the allocation is split over the largest ones: while enough bytes are free, an
// allocation only fails when it would need more than `max_extents` pieces.
//
// All of its own data lies outside the arena, so a stray write into the arena cannot damage it.
//
// Thread safety: every method may be called from any thread. Each takes one lock for well under a
// microsecond (tests/bench/store_bench.cc).

#ifndef PENSTOCK_SERVER_DAEMON_STORE_EXTENT_ALLOCATOR_H_
#define PENSTOCK_SERVER_DAEMON_STORE_EXTENT_ALLOCATOR_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/base/mutex.h"

namespace penstock {

// One piece of the arena. `bytes` is a multiple of the granule.
struct Extent {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t block = 0;  // The allocator's own name for it.
};
using ExtentList = absl::InlinedVector<Extent, 1>;

class ExtentAllocator {
 public:
  // REQUIRES: granule is a power of two, arena_bytes >= granule, max_extents >= 1. Bytes of the
  // arena beyond a whole number of granules are never used.
  ExtentAllocator(uint64_t arena_bytes, uint32_t granule, uint32_t max_extents);
  ~ExtentAllocator();
  ExtentAllocator(const ExtentAllocator&) = delete;
  ExtentAllocator& operator=(const ExtentAllocator&) = delete;

  // Fills `out` (empty before) with extents that add up to `bytes`, rounded up to the granule; 0
  // bytes need no extent and always succeed. False, and nothing taken, when there is not enough
  // free or when it lies in too many pieces.
  [[nodiscard]] bool Allocate(uint64_t bytes, ExtentList& out) ABSL_LOCKS_EXCLUDED(mu_);
  // Gives back what one Allocate() filled, and clears the list. Aborts on a double free.
  void Free(ExtentList& extents) ABSL_LOCKS_EXCLUDED(mu_);

  // `bytes` rounded up to the granule: what an allocation of that size really takes.
  uint64_t RoundUp(uint64_t bytes) const { return (bytes + granule_ - 1) & ~(granule_ - 1); }
  uint64_t capacity() const { return capacity_; }
  uint64_t free_bytes() const { return free_bytes_.load(std::memory_order_relaxed); }

  struct Stats {
    uint64_t free_bytes = 0;
    uint64_t used_bytes = 0;
    uint64_t largest_free = 0;  // To within 3 %, never too much.
    uint64_t free_blocks = 0;
    uint64_t used_blocks = 0;
    uint64_t split_allocations = 0;       // Allocations of more than one extent.
    uint64_t fragmented_allocations = 0;  // Failed for the number of extents, not for bytes.
  };
  Stats GetStats() const ABSL_LOCKS_EXCLUDED(mu_);

  // Walks everything; empty if all is well, otherwise what is not. For tests.
  std::string CheckInvariants() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static constexpr uint32_t kNil = UINT32_MAX;
  static constexpr int kSubBits = 5;
  static constexpr uint32_t kSubs = 1u << kSubBits;
  static constexpr int kLevels = 64 - kSubBits + 1;
  static constexpr uint32_t kSlabBlocks = 4096;

  // Sizes and offsets of blocks are in granules. Blocks form a list in the order of the arena, and
  // the free ones another in their class.
  struct Block {
    uint64_t offset = 0;
    uint64_t size = 0;
    uint32_t before = kNil;  // Neighbours in the arena.
    uint32_t after = kNil;
    uint32_t prev = kNil;  // In the class list; `next` also links unused block records.
    uint32_t next = kNil;
    bool free = false;
    bool live = false;  // Describes a part of the arena.
  };
  struct Class {
    int level;
    uint32_t sub;
  };

  static Class ClassOf(uint64_t size);
  Block& At(uint32_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return slabs_[id / kSlabBlocks][id % kSlabBlocks];
  }
  const Block& At(uint32_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return slabs_[id / kSlabBlocks][id % kSlabBlocks];
  }
  uint32_t NewRecord() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RetireRecord(uint32_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LinkFree(uint32_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UnlinkFree(uint32_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A free block of at least `size`, the smallest class that has one; kNil if there is none.
  uint32_t FindFit(uint64_t size) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A free block of the largest class that has one; kNil if nothing is free.
  uint32_t FindLargest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint32_t FirstAtOrAbove(Class want) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the first `size` granules of a free block out of the free lists.
  void Take(uint32_t id, uint64_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveBack(uint32_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Appends the block `right` to its neighbour `left`.
  void Merge(uint32_t left, uint32_t right) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string CheckFreeLists(uint64_t free_blocks) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t granule_;
  const int granule_shift_;
  const uint32_t max_extents_;
  const uint64_t capacity_;

  std::atomic<uint64_t> free_bytes_;  // Written under mu_.

  mutable Mutex mu_;
  std::vector<std::unique_ptr<Block[]>> slabs_ ABSL_GUARDED_BY(mu_);
  uint32_t unused_records_ ABSL_GUARDED_BY(mu_) = kNil;
  uint32_t first_ ABSL_GUARDED_BY(mu_) = kNil;  // At offset 0.
  uint64_t free_blocks_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t used_blocks_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t split_allocations_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t fragmented_allocations_ ABSL_GUARDED_BY(mu_) = 0;
  // Bit l of levels_: some class of level l has a block. Bit s of subs_[l]: class (l, s) has one.
  uint64_t levels_ ABSL_GUARDED_BY(mu_) = 0;
  std::array<uint32_t, kLevels> subs_ ABSL_GUARDED_BY(mu_){};
  std::array<std::array<uint32_t, kSubs>, kLevels> heads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_EXTENT_ALLOCATOR_H_
