// ChunkStoreStats: what a ChunkStore did and what it holds. A counter is updated in one place, at
// the outcome, never at the intention.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_STORE_STATS_H_
#define PENSTOCK_SERVER_DAEMON_STORE_STORE_STATS_H_

#include <array>
#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace penstock {

struct ChunkStoreStats {
  // Counters of Begin()/Commit(), since the store was created. While nothing is being called:
  //   begun = committed + exists + sum(refused) + sum(failed) + pending_chunks
  uint64_t begun = 0;
  uint64_t committed = 0;
  uint64_t committed_bytes = 0;
  uint64_t exists = 0;  // Yielded to a chunk that was there already, at Begin() or at Commit().
  // Refused by Begin(), by code: kTooLarge, kAllPinned, kBusy, kFormatMismatch, kInvalidArgument.
  std::array<uint64_t, kCodeCount> refused{};
  // Begun and lost, by code: kChecksumMismatch, kCancelled (dropped without a commit),
  // kFormatMismatch (the key was taken by another namespace meanwhile).
  std::array<uint64_t, kCodeCount> failed{};

  // Lookups by Find() and FindMany(), a key each: finds = hits + misses + mismatches.
  uint64_t finds = 0;
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t mismatches = 0;
  // Match(): calls, keys in them, and keys of the answers (MatchResult::matched, once a group).
  uint64_t matches = 0;
  uint64_t match_keys = 0;
  uint64_t matched_keys = 0;

  // Where chunks went: committed = chunks + evicted + dropped + replaced.
  uint64_t evicted_chunks = 0;
  uint64_t evicted_bytes = 0;
  uint64_t dropped_chunks = 0;
  uint64_t dropped_bytes = 0;
  uint64_t damaged_chunks = 0;  // Of the dropped: their bytes had changed in the arena.
  uint64_t replaced_chunks = 0;
  uint64_t replaced_bytes = 0;

  // Gauges: chunks and payload bytes.
  uint64_t chunks = 0;  // In the index.
  uint64_t chunk_bytes = 0;
  uint64_t pending_chunks = 0;  // Begun, not committed.
  uint64_t pending_bytes = 0;
  uint64_t detached_chunks = 0;  // Out of the index, still held by a reader or a reservation.
  uint64_t detached_bytes = 0;
  uint64_t reservations = 0;
  uint64_t reserved_chunks = 0;  // Each chunk counts once, however many reservations hold it.
  uint64_t reserved_bytes = 0;
  uint64_t pinned_chunks = 0;
  uint64_t pinned_bytes = 0;
  uint64_t namespaces = 0;
  uint64_t metadata_bytes = 0;  // Estimate that max_metadata_bytes bounds.

  // The arena, in bytes of whole granules.
  uint64_t arena_bytes = 0;  // used + free.
  uint64_t used_bytes = 0;   // 0 exactly when there is no chunk, pending chunk or reader.
  uint64_t free_bytes = 0;
  uint64_t largest_free_bytes = 0;
  uint64_t free_blocks = 0;

  // Ends of reservations and pins: made = released + expired + revoked + now there.
  uint64_t reservations_made = 0;
  uint64_t reservations_released = 0;  // By their owner or at its death.
  uint64_t reservations_expired = 0;
  uint64_t reservations_revoked = 0;  // By Clear().
  uint64_t reservations_refused = 0;  // Over the budget.
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_STORE_STATS_H_
