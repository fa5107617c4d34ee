#include "server/daemon/store/chunk_space.h"

#include <algorithm>
#include <utility>

#include "server/daemon/store/store_check.h"

#if defined(__SANITIZE_ADDRESS__)
#define PENSTOCK_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PENSTOCK_ASAN 1
#endif
#endif
#ifdef PENSTOCK_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace penstock {
namespace {

// What an index entry, its place in the policy and the allocator's records take.
constexpr uint64_t kRecordBytes = sizeof(ChunkEntry) + 256;

// AddressSanitizer knows nothing of the arena: tell it which parts nobody may touch.
void Forbid([[maybe_unused]] void* at, [[maybe_unused]] size_t bytes) {
#ifdef PENSTOCK_ASAN
  ASAN_POISON_MEMORY_REGION(at, bytes);
#endif
}
void Permit([[maybe_unused]] void* at, [[maybe_unused]] size_t bytes) {
#ifdef PENSTOCK_ASAN
  ASAN_UNPOISON_MEMORY_REGION(at, bytes);
#endif
}

uint64_t Fraction(uint64_t bytes, double fraction) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * fraction);
}

}  // namespace

Result<std::unique_ptr<ChunkSpace>> ChunkSpace::Create(const ChunkStoreOptions& options,
                                                       StoreCounters& counters) {
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena, Arena::Create(options.arena));
  return std::unique_ptr<ChunkSpace>(new ChunkSpace(options, std::move(arena), counters));
}

ChunkSpace::ChunkSpace(const ChunkStoreOptions& options, std::unique_ptr<Arena> arena,
                       StoreCounters& counters)
    : counters_(counters),
      arena_(std::move(arena)),
      allocator_(arena_->size(), options.granule_bytes, options.max_extents),
      pending_(Fraction(arena_->size(), options.max_pending),
               Fraction(arena_->size(), options.max_pending * options.max_pending_per_owner)),
      max_metadata_bytes_(options.max_metadata_bytes),
      headroom_bytes_(Fraction(arena_->size(), options.headroom)) {
  Forbid(arena_->base(), arena_->size());
}

ChunkSpace::~ChunkSpace() {
  STORE_CHECK(entries_.load() == 0 && "a ChunkRef or PendingChunk outlived its ChunkStore");
  Permit(arena_->base(), arena_->size());
}

ChunkEntry* ChunkSpace::NewEntry(NewChunk&& chunk, std::shared_ptr<NamespaceRecord> ns,
                                 uint64_t payload_bytes) {
  auto* const entry = new ChunkEntry;
  entries_.fetch_add(1, std::memory_order_relaxed);
  entry->store = this;
  entry->key = chunk.key;
  entry->parent = chunk.parent;
  entry->ns = std::move(ns);
  entry->payload_bytes = payload_bytes;
  entry->manifest = std::move(chunk.manifest);
  entry->encoded_manifest = entry->manifest.Encode();
  entry->arena_bytes = allocator_.RoundUp(payload_bytes);
  // The decoded manifest is about as large as the encoded one.
  entry->metadata_bytes = kRecordBytes + 2 * entry->encoded_manifest.size();
  return entry;
}

bool ChunkSpace::TakeMetadata(uint64_t bytes) {
  uint64_t now = metadata_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > max_metadata_bytes_ || now > max_metadata_bytes_ - bytes) return false;
  } while (!metadata_bytes_.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
  return true;
}

bool ChunkSpace::Allocate(ChunkEntry& entry) {
  if (!TakeMetadata(entry.metadata_bytes)) return false;
  if (!allocator_.Allocate(entry.payload_bytes, entry.extents)) {
    metadata_bytes_.fetch_sub(entry.metadata_bytes, std::memory_order_relaxed);
    return false;
  }
  entry.charged = true;
  uint64_t left = entry.payload_bytes;
  entry.pieces.reserve(entry.extents.size());
  for (const Extent& extent : entry.extents) {
    const uint64_t length = std::min(left, extent.bytes);
    entry.pieces.push_back({arena_->base() + extent.offset, length});
    Permit(arena_->base() + extent.offset, length);
    left -= length;
  }
  STORE_CHECK(left == 0);
  return true;
}

RetentionPolicy::Goal ChunkSpace::Shortage(const ChunkEntry& entry) const {
  RetentionPolicy::Goal goal;
  const uint64_t metadata = metadata_bytes();
  if (metadata + entry.metadata_bytes > max_metadata_bytes_) {
    goal.metadata_bytes = metadata + entry.metadata_bytes - max_metadata_bytes_;
  }
  const uint64_t free = allocator_.free_bytes();
  if (entry.arena_bytes > free) {
    goal.arena_bytes = entry.arena_bytes - free;
  } else if (goal.metadata_bytes == 0) {
    // Enough is free, in too many pieces (or it was taken and has come back): every eviction
    // makes larger ones.
    goal.arena_bytes = std::max<uint64_t>(entry.arena_bytes / 4, 1);
  }
  return goal;
}

uint64_t ChunkSpace::ShortOfHeadroom() const {
  const uint64_t free = allocator_.free_bytes();
  return free < headroom_bytes_ ? headroom_bytes_ - free : 0;
}

void ChunkSpace::Reclaim(ChunkEntry* entry) {
  for (const Extent& extent : entry->extents) {
    Forbid(arena_->base() + extent.offset, extent.bytes);
  }
  allocator_.Free(entry->extents);
  if (entry->charged) {
    metadata_bytes_.fetch_sub(entry->metadata_bytes, std::memory_order_relaxed);
  }
  if (entry->detached) {
    Subtract(counters_.detached_chunks, 1);
    Subtract(counters_.detached_bytes, entry->payload_bytes);
  }
  delete entry;
  entries_.fetch_sub(1, std::memory_order_relaxed);
}

void ChunkSpace::Abandon(ChunkEntry* entry, OwnerId owner) {
  Add(counters_.failed[static_cast<size_t>(Code::kCancelled)], 1);
  pending_.Return(owner, entry->payload_bytes);
  Unref(entry);
}

}  // namespace penstock
