// ChunkSpace: makes the records of chunks with memory in the arena, and takes them back when their
// last reference goes. Knows nothing of keys.
//
// Thread safety: every method may be called from any thread.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_CHUNK_SPACE_H_
#define PENSTOCK_SERVER_DAEMON_STORE_CHUNK_SPACE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/status.h"
#include "server/daemon/store/arena.h"
#include "server/daemon/store/chunk_entry.h"
#include "server/daemon/store/extent_allocator.h"
#include "server/daemon/store/pending_budget.h"
#include "server/daemon/store/retention.h"
#include "server/daemon/store/store_counters.h"
#include "server/daemon/store/store_options.h"

namespace penstock {

class ChunkSpace final : public EntryOwner {
 public:
  // `options` are validated and their defaults filled in; `counters` must outlive the space.
  static Result<std::unique_ptr<ChunkSpace>> Create(const ChunkStoreOptions& options,
                                                    StoreCounters& counters);
  // Aborts if an entry is left.
  ~ChunkSpace();

  // An entry without memory yet, one reference. Never fails. payload_bytes is that of `manifest`.
  ChunkEntry* NewEntry(NewChunk&& chunk, std::shared_ptr<NamespaceRecord> ns,
                       uint64_t payload_bytes);
  // Memory for the entry's payload and record; false when either does not fit now.
  bool Allocate(ChunkEntry& entry);
  // What must be evicted before Allocate() can succeed.
  RetentionPolicy::Goal Shortage(const ChunkEntry& entry) const;
  // Bytes that must be evicted so that `headroom_bytes` are free.
  uint64_t ShortOfHeadroom() const;

  void Reclaim(ChunkEntry* entry) override;
  void Abandon(ChunkEntry* entry, OwnerId owner) override;

  PendingBudget& pending() { return pending_; }
  const PendingBudget& pending() const { return pending_; }
  const Arena& arena() const { return *arena_; }
  const ExtentAllocator& allocator() const { return allocator_; }
  uint64_t metadata_bytes() const { return metadata_bytes_.load(std::memory_order_relaxed); }

 private:
  ChunkSpace(const ChunkStoreOptions& options, std::unique_ptr<Arena> arena,
             StoreCounters& counters);
  bool TakeMetadata(uint64_t bytes);

  StoreCounters& counters_;
  const std::unique_ptr<Arena> arena_;
  ExtentAllocator allocator_;
  PendingBudget pending_;
  const uint64_t max_metadata_bytes_;
  const uint64_t headroom_bytes_;
  std::atomic<uint64_t> metadata_bytes_{0};
  std::atomic<uint64_t> entries_{0};
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_CHUNK_SPACE_H_
