// ChunkIndex: from keys to committed chunks, in shards with a lock each.
//
// Read() is the choke point of every read: it alone decides whether a chunk may be seen by a
// reader. The index keeps the retention policy, the pins and the counts of the namespaces in step
// with what it holds, under the lock of the shard.
//
// Thread safety: every method may be called from any thread.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_CHUNK_INDEX_H_
#define PENSTOCK_SERVER_DAEMON_STORE_CHUNK_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/daemon/store/chunk_entry.h"
#include "server/daemon/store/chunk_ref.h"
#include "server/daemon/store/hold_table.h"
#include "server/daemon/store/key_hash.h"
#include "server/daemon/store/retention.h"
#include "server/daemon/store/store_counters.h"
#include "server/daemon/store/store_types.h"

namespace penstock {

class ChunkIndex {
 public:
  // REQUIRES: shards is a power of two. The others must outlive the index.
  ChunkIndex(uint32_t shards, RetentionPolicy& policy, HoldTable& holds, StoreCounters& counters);

  // Calls visit(ChunkEntry&) under the lock of the shard, if there is a chunk that a reader with
  // these terms may see. `visit` may touch it and take references, and must not call the index.
  // Returns kOk, kMiss or kFormatMismatch.
  template <typename Visit>
  Code Read(const ChunkKey& key, const ReadTerms& terms, Visit&& visit) {
    Shard& shard = ShardOf(key);
    MutexLock lock(shard.mu);
    const auto it = shard.chunks.find(key);
    if (it == shard.chunks.end()) return Code::kMiss;
    if (!MayRead(*it->second, terms)) return Code::kFormatMismatch;
    visit(*it->second);
    return Code::kOk;
  }

  // For writers: kMiss if the key is free, kAlreadyExists if it is taken (and then refreshes the
  // chunk there, which somebody has just computed again), kFormatMismatch if it is taken by another
  // namespace.
  Code Probe(const ChunkKey& key, NamespaceId ns, uint64_t moment);

  // Publishes `entry`, whose reference passes to the index if the answer is kOk. With `replace` a
  // chunk of the same namespace that was there goes to `replaced`, with the index's reference.
  // Returns kOk, kAlreadyExists, kFormatMismatch.
  Code Insert(ChunkEntry& entry, bool replace, ChunkRef& replaced);
  // Unlinks one chunk, whose reference goes to `removed`.
  // Returns kOk, kMiss, kFormatMismatch (another namespace).
  Code Remove(const ChunkKey& key, NamespaceId ns, ChunkRef& removed);
  // Unlinks this very chunk: false, and nothing happens, if its key has another one by now or none.
  bool Remove(const ChunkRef& chunk, ChunkRef& removed);
  // Unlinks all chunks of one shard that are of `ns`, or all there are if it is kNone.
  std::vector<ChunkRef> RemoveAll(uint32_t shard, NamespaceId ns);
  // Unlinks what the policy proposed, unless somebody uses it meanwhile: then the policy gets it
  // back, and an empty reference is returned. Takes over the reference that Propose() added.
  ChunkRef Evict(RetentionNode& node);

  uint32_t shards() const { return mask_ + 1; }

  struct Sums {
    size_t chunks = 0;
    uint64_t arena_bytes = 0;
  };
  // Walks everything and adds it to `sums`; empty if all is well, otherwise what is not. For tests.
  std::string Check(Sums& sums) const;

 private:
  struct alignas(64) Shard {
    mutable Mutex mu;
    absl::flat_hash_map<ChunkKey, ChunkEntry*, KeyHash> chunks ABSL_GUARDED_BY(mu);
  };

  static bool MayRead(const ChunkEntry& entry, const ReadTerms& terms) {
    constexpr uint32_t kInexact = kManifestLossy | kManifestQueryDependent;
    return entry.ns->id == terms.ns &&
           (!terms.tag || entry.manifest.tag == 0 || entry.manifest.tag == *terms.tag) &&
           !(terms.want_exact && (entry.manifest.flags & kInexact) != 0);
  }
  // By other bytes of the key than a table uses first.
  Shard& ShardOf(const ChunkKey& key) {
    return shards_[(key.bytes[31] | uint32_t{key.bytes[30]} << 8) & mask_];
  }
  // The bookkeeping of arrivals and departures, under the lock of the shard. Depart() returns the
  // index's reference.
  void Arrive(ChunkEntry& entry);
  ChunkRef Depart(ChunkEntry& entry);

  RetentionPolicy& policy_;
  HoldTable& holds_;
  StoreCounters& counters_;
  const uint32_t mask_;
  const std::unique_ptr<Shard[]> shards_;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_CHUNK_INDEX_H_
