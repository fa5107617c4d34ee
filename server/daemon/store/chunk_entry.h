// ChunkEntry: the store's record of one chunk. Internal to the store.
//
// Life: made by ChunkStore::Begin() with one reference, the PendingChunk's. Commit() passes that
// reference on to the index; readers, reservations and pins add theirs. When the last one goes, its
// owner gives the memory back. Everything but the counters is constant once it is published.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_CHUNK_ENTRY_H_
#define PENSTOCK_SERVER_DAEMON_STORE_CHUNK_ENTRY_H_

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/format/manifest.h"
#include "server/daemon/store/extent_allocator.h"
#include "server/daemon/store/namespace_registry.h"
#include "server/daemon/store/retention.h"
#include "server/daemon/store/store_types.h"

namespace penstock {

struct ChunkEntry;

// Who takes the memory of an entry back.
class EntryOwner {
 public:
  // The last reference is gone. Any thread, no lock held.
  virtual void Reclaim(ChunkEntry* entry) = 0;
  // A PendingChunk was destroyed without a commit; its reference is handed over.
  virtual void Abandon(ChunkEntry* entry, OwnerId owner) = 0;

 protected:
  ~EntryOwner() = default;
};

struct ChunkEntry : RetentionNode {
  EntryOwner* store = nullptr;
  std::shared_ptr<NamespaceRecord> ns;  // Keeps its place while there is a chunk of it.
  uint64_t payload_bytes = 0;
  Manifest manifest;
  std::vector<std::byte> encoded_manifest;
  ExtentList extents;
  absl::InlinedVector<iovec, 1> pieces;

  bool charged = false;   // Its memory is accounted for.
  bool detached = false;  // Left the index; set before the index gives up its reference.

  // Guarded by the lock of the HoldTable.
  uint32_t reservations = 0;
  bool pinned = false;
};

inline void Ref(ChunkEntry& entry) { entry.refs.fetch_add(1, std::memory_order_relaxed); }
inline void Unref(ChunkEntry* entry) {
  if (entry->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) entry->store->Reclaim(entry);
}

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_CHUNK_ENTRY_H_
