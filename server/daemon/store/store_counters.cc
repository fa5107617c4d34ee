#include "server/daemon/store/store_counters.h"

#include "server/daemon/store/store_parts.h"

namespace penstock {

void CopyCounters(const StoreCounters& from, ChunkStoreStats& to) {
  to.begun = Read(from.begun);
  to.committed = Read(from.committed);
  to.committed_bytes = Read(from.committed_bytes);
  to.exists = Read(from.exists);
  for (size_t code = 0; code < kCodeCount; ++code) {
    to.refused[code] = Read(from.refused[code]);
    to.failed[code] = Read(from.failed[code]);
  }
  to.hits = Read(from.hits);
  to.misses = Read(from.misses);
  to.mismatches = Read(from.mismatches);
  to.finds = to.hits + to.misses + to.mismatches;
  to.matches = Read(from.matches);
  to.match_keys = Read(from.match_keys);
  to.matched_keys = Read(from.matched_keys);
  to.evicted_chunks = Read(from.evicted_chunks);
  to.evicted_bytes = Read(from.evicted_bytes);
  to.dropped_chunks = Read(from.dropped_chunks);
  to.dropped_bytes = Read(from.dropped_bytes);
  to.damaged_chunks = Read(from.damaged_chunks);
  to.replaced_chunks = Read(from.replaced_chunks);
  to.replaced_bytes = Read(from.replaced_bytes);
  to.chunks = Read(from.chunks);
  to.chunk_bytes = Read(from.chunk_bytes);
  to.detached_chunks = Read(from.detached_chunks);
  to.detached_bytes = Read(from.detached_bytes);
}

}  // namespace penstock
