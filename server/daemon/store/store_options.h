// ChunkStoreOptions: how large a ChunkStore is and where its limits are. Validated once, by
// ChunkStore::Create(); everything behind it may rely on what Validate() checked.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_STORE_OPTIONS_H_
#define PENSTOCK_SERVER_DAEMON_STORE_STORE_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "common/base/deadline.h"
#include "common/base/status.h"

namespace penstock {

// How the arena is backed. Create() fails rather than fall back to another kind: what to try next
// is the caller's decision, so that it can be told to the operator.
enum class PageKind : uint8_t {
  kOrdinary = 0,
  kTransparentHuge = 1,  // Ordinary pages with advice to the kernel to merge them.
  kHugeTlb = 2,          // Reserved huge pages (vm.nr_hugepages) of the default size.
};

struct ArenaOptions {
  uint64_t bytes = 0;  // Rounded up to whole pages (of the page kind). No default.
  PageKind pages = PageKind::kTransparentHuge;
  bool prefault = false;  // Touch every page now, so that no store pays for a page fault later.
  bool lock = false;      // mlock(): never swapped. Implies prefault.
};

struct ChunkStoreOptions {
  ArenaOptions arena;
  // Longest chunk. 0: a quarter of the arena.
  uint64_t max_chunk_bytes = 0;
  // Unit of allocation, a power of two from 64 to 64 KiB.
  uint32_t granule_bytes = 256;
  // Pieces that one chunk may be split into, 1 to 1024 (one iovec each).
  uint32_t max_extents = 512;
  // Bytes of manifests and index entries, which live outside the arena; beyond it, chunks are
  // evicted as if the arena were full. 0: an eighth of the arena, at least 16 MiB.
  uint64_t max_metadata_bytes = 0;

  // Fractions of the arena.
  double headroom = 0.02;      // Maintain() keeps this much free.
  double max_pending = 0.25;   // In chunks begun and not committed; kBusy beyond.
  double max_reserved = 0.50;  // In chunks that reservations hold.
  double max_pinned = 0.25;    // In pinned chunks.
  // Share of the pending bytes that one owner may have; kBusy beyond.
  double max_pending_per_owner = 0.5;

  Duration max_reservation_ttl = std::chrono::minutes(5);  // Longer wishes are cut to it.
  Duration max_pin_ttl = std::chrono::hours(24 * 7);       // The same for pins.
  uint32_t max_reservations = 65536;                       // At a time.
  uint64_t max_reserved_refs = 4ull << 20;                 // Chunks in all of them, 8 bytes each.
  uint32_t max_pins = 1u << 20;                            // At a time.
  uint32_t max_match_keys = 1u << 20;                      // In all groups of one Match().
  uint32_t max_namespaces = 4096;
  uint64_t max_namespace_bytes = 64ull << 20;  // Of all encoded descriptors together.
  uint32_t index_shards = 64;                  // A power of two, at most 1024.

  // Whether Commit() checks the checksums of the manifest.
  bool verify_on_commit = true;
  // The monotonic clock; tests put their own here. Must be safe to call from any thread.
  std::function<MonotonicTime()> clock = [] { return MonotonicNow(); };

  // The only validation. Errors: kInvalidArgument, naming the field, its value and its range.
  Status Validate() const;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_STORE_OPTIONS_H_
