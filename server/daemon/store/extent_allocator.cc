#include "server/daemon/store/extent_allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "server/daemon/store/store_check.h"

namespace penstock {
namespace {

// Blocks of the wanted size's own class may be a little too small; this many are tried before a
// larger class is split.
constexpr int kOwnClassTries = 8;

}  // namespace

ExtentAllocator::ExtentAllocator(uint64_t arena_bytes, uint32_t granule, uint32_t max_extents)
    : granule_(granule),
      granule_shift_(std::countr_zero(granule)),
      max_extents_(max_extents),
      capacity_(arena_bytes >> granule_shift_ << granule_shift_),
      free_bytes_(capacity_) {
  STORE_CHECK(std::has_single_bit(granule) && arena_bytes >= granule && max_extents >= 1);
  MutexLock lock(mu_);
  for (auto& level : heads_) level.fill(kNil);
  first_ = NewRecord();
  At(first_).size = capacity_ >> granule_shift_;
  LinkFree(first_);
}

ExtentAllocator::~ExtentAllocator() = default;

// Sizes below kSubs have a class each, on level 0; above, a level is an octave.
ExtentAllocator::Class ExtentAllocator::ClassOf(uint64_t size) {
  if (size < kSubs) return {0, static_cast<uint32_t>(size)};
  const int log2 = std::bit_width(size) - 1;
  const auto sub = static_cast<uint32_t>(size >> (log2 - kSubBits)) & (kSubs - 1);
  return {log2 - kSubBits + 1, sub};
}

uint32_t ExtentAllocator::NewRecord() {
  if (unused_records_ == kNil) {
    const auto first = static_cast<uint32_t>(slabs_.size() * kSlabBlocks);
    slabs_.push_back(std::make_unique<Block[]>(kSlabBlocks));
    for (uint32_t i = kSlabBlocks; i-- > 0;) {
      At(first + i).next = unused_records_;
      unused_records_ = first + i;
    }
  }
  const uint32_t id = unused_records_;
  unused_records_ = At(id).next;
  At(id) = Block{};
  At(id).live = true;
  return id;
}

void ExtentAllocator::RetireRecord(uint32_t id) {
  At(id).live = false;
  At(id).next = unused_records_;
  unused_records_ = id;
}

void ExtentAllocator::LinkFree(uint32_t id) {
  Block& block = At(id);
  const auto [level, sub] = ClassOf(block.size);
  uint32_t& head = heads_[level][sub];
  block.free = true;
  block.prev = kNil;
  block.next = head;
  if (head != kNil) At(head).prev = id;
  head = id;
  subs_[level] |= 1u << sub;
  levels_ |= uint64_t{1} << level;
  ++free_blocks_;
}

void ExtentAllocator::UnlinkFree(uint32_t id) {
  Block& block = At(id);
  const auto [level, sub] = ClassOf(block.size);
  if (block.prev != kNil) {
    At(block.prev).next = block.next;
  } else {
    heads_[level][sub] = block.next;
    if (block.next == kNil) {
      subs_[level] &= ~(1u << sub);
      if (subs_[level] == 0) levels_ &= ~(uint64_t{1} << level);
    }
  }
  if (block.next != kNil) At(block.next).prev = block.prev;
  block.free = false;
  --free_blocks_;
}

uint32_t ExtentAllocator::FirstAtOrAbove(Class want) const {
  if (want.level >= kLevels) return kNil;
  const uint32_t here = subs_[want.level] & (~0u << want.sub);
  if (here != 0) return heads_[want.level][std::countr_zero(here)];
  if (want.level + 1 >= kLevels) return kNil;
  const uint64_t above = levels_ & (~uint64_t{0} << (want.level + 1));
  if (above == 0) return kNil;
  const int level = std::countr_zero(above);
  return heads_[level][std::countr_zero(subs_[level])];
}

uint32_t ExtentAllocator::FindFit(uint64_t size) const {
  const Class own = ClassOf(size);
  uint32_t id = heads_[own.level][own.sub];
  for (int i = 0; i < kOwnClassTries && id != kNil; ++i, id = At(id).next) {
    if (At(id).size >= size) return id;
  }
  // Every block of the next class and above fits.
  return FirstAtOrAbove(own.sub + 1 < kSubs ? Class{own.level, own.sub + 1}
                                            : Class{own.level + 1, 0});
}

uint32_t ExtentAllocator::FindLargest() const {
  if (levels_ == 0) return kNil;
  const int level = std::bit_width(levels_) - 1;
  return heads_[level][std::bit_width(subs_[level]) - 1];
}

void ExtentAllocator::Take(uint32_t id, uint64_t size) {
  UnlinkFree(id);
  ++used_blocks_;
  if (At(id).size > size) {
    const uint32_t rest = NewRecord();
    Block& block = At(id);
    Block& tail = At(rest);
    tail.offset = block.offset + size;
    tail.size = block.size - size;
    tail.before = id;
    tail.after = block.after;
    if (tail.after != kNil) At(tail.after).before = rest;
    block.after = rest;
    block.size = size;
    LinkFree(rest);
  }
}

void ExtentAllocator::Merge(uint32_t left, uint32_t right) {
  Block& to = At(left);
  Block& from = At(right);
  to.size += from.size;
  to.after = from.after;
  if (to.after != kNil) At(to.after).before = left;
  RetireRecord(right);
}

void ExtentAllocator::GiveBack(uint32_t id) {
  STORE_CHECK(id / kSlabBlocks < slabs_.size() && At(id).live && !At(id).free);
  --used_blocks_;
  if (const uint32_t after = At(id).after; after != kNil && At(after).free) {
    UnlinkFree(after);
    Merge(id, after);
  }
  if (const uint32_t before = At(id).before; before != kNil && At(before).free) {
    UnlinkFree(before);
    Merge(before, id);
    id = before;
  }
  LinkFree(id);
}

bool ExtentAllocator::Allocate(uint64_t bytes, ExtentList& out) {
  STORE_CHECK(out.empty());
  if (bytes == 0) return true;
  if (bytes > capacity_) return false;
  uint64_t want = RoundUp(bytes) >> granule_shift_;
  MutexLock lock(mu_);
  const uint64_t free = free_bytes_.load(std::memory_order_relaxed);
  if (want << granule_shift_ > free) return false;
  while (want > 0 && out.size() < max_extents_) {
    uint32_t id = FindFit(want);
    if (id == kNil) id = FindLargest();
    // FindFit() overlooks blocks deep in the own class: such a one may hold more than is wanted.
    const uint64_t size = std::min(want, At(id).size);
    Take(id, size);
    out.push_back({At(id).offset << granule_shift_, size << granule_shift_, id});
    want -= size;
  }
  if (want > 0) {
    for (const Extent& extent : out) GiveBack(extent.block);
    out.clear();
    ++fragmented_allocations_;
    return false;
  }
  if (out.size() > 1) ++split_allocations_;
  free_bytes_.store(free - RoundUp(bytes), std::memory_order_relaxed);
  return true;
}

void ExtentAllocator::Free(ExtentList& extents) {
  if (extents.empty()) return;
  MutexLock lock(mu_);
  uint64_t freed = 0;
  for (const Extent& extent : extents) {
    freed += extent.bytes;
    GiveBack(extent.block);
  }
  free_bytes_.store(free_bytes_.load(std::memory_order_relaxed) + freed, std::memory_order_relaxed);
  extents.clear();
}

ExtentAllocator::Stats ExtentAllocator::GetStats() const {
  constexpr int kLook = 64;  // The blocks of one class differ by 1/32 at most.
  MutexLock lock(mu_);
  Stats stats;
  stats.free_bytes = free_bytes();
  stats.used_bytes = capacity_ - stats.free_bytes;
  stats.free_blocks = free_blocks_;
  stats.used_blocks = used_blocks_;
  stats.split_allocations = split_allocations_;
  stats.fragmented_allocations = fragmented_allocations_;
  uint32_t id = FindLargest();
  for (int i = 0; i < kLook && id != kNil; ++i, id = At(id).next) {
    stats.largest_free = std::max(stats.largest_free, At(id).size << granule_shift_);
  }
  return stats;
}

std::string ExtentAllocator::CheckInvariants() const {
  MutexLock lock(mu_);
  uint64_t at = 0, free = 0, free_blocks = 0, used_blocks = 0;
  uint32_t before = kNil;
  for (uint32_t id = first_; id != kNil; before = id, id = At(id).after) {
    const Block& block = At(id);
    if (!block.live) return fmt::format("block {} is in the arena but not live", id);
    if (block.offset != at) return fmt::format("gap or overlap at granule {}", at);
    if (block.size == 0) return fmt::format("empty block at granule {}", at);
    if (block.before != before) return fmt::format("wrong neighbour at granule {}", at);
    if (block.free && before != kNil && At(before).free) {
      return fmt::format("two free blocks side by side at granule {}", at);
    }
    at += block.size;
    if (block.free) free += block.size;
    ++(block.free ? free_blocks : used_blocks);
  }
  if (at << granule_shift_ != capacity_) return fmt::format("the blocks end at granule {}", at);
  if (free << granule_shift_ != free_bytes()) return fmt::format("{} granules are free", free);
  if (used_blocks != used_blocks_) return fmt::format("{} blocks are used", used_blocks);
  return CheckFreeLists(free_blocks);
}

std::string ExtentAllocator::CheckFreeLists(uint64_t free_blocks) const {
  uint64_t listed = 0;
  for (int level = 0; level < kLevels; ++level) {
    for (uint32_t sub = 0; sub < kSubs; ++sub) {
      const bool bit = (subs_[level] >> sub & 1) != 0;
      if (bit != (heads_[level][sub] != kNil)) {
        return fmt::format("wrong bit of class ({}, {})", level, sub);
      }
      uint32_t prev = kNil;
      for (uint32_t id = heads_[level][sub]; id != kNil; prev = id, id = At(id).next, ++listed) {
        const Class own = ClassOf(At(id).size);
        if (!At(id).free || At(id).prev != prev || own.level != level || own.sub != sub) {
          return fmt::format("block {} is in the wrong list", id);
        }
      }
    }
    if ((subs_[level] != 0) != ((levels_ >> level & 1) != 0)) {
      return fmt::format("wrong bit of level {}", level);
    }
  }
  if (listed != free_blocks || listed != free_blocks_) {
    return fmt::format("{} blocks are listed, {} are free", listed, free_blocks);
  }
  return "";
}

}  // namespace penstock
