// HoldTable: reservations and pins, the two promises that a chunk will not be evicted.
//
// Each hold keeps a reference to its chunk, so the promise needs no cooperation of anybody else.
// Both kinds have a budget in bytes and end by themselves; a chunk counts once in each budget,
// however many reservations hold it.
//
// Lock order: index shard, then this table's lock, then the policy's. References are given up with
// no lock held.
// Thread safety: every method may be called from any thread.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_HOLD_TABLE_H_
#define PENSTOCK_SERVER_DAEMON_STORE_HOLD_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/daemon/store/chunk_ref.h"
#include "server/daemon/store/key_hash.h"
#include "server/daemon/store/retention.h"
#include "server/daemon/store/store_types.h"

namespace penstock {

class HoldTable {
 public:
  struct Limits {
    uint64_t reserved_bytes = 0;
    uint64_t pinned_bytes = 0;
    uint32_t reservations = 0;
    uint64_t references = 0;  // Of all reservations, a chunk in two of them counted twice.
    uint32_t pins = 0;
  };

  // `policy` must outlive the table.
  HoldTable(const Limits& limits, RetentionPolicy& policy) : limits_(limits), policy_(policy) {}

  // ---- Reservations

  // Errors: kBusy (the budget, or the number of reservations, is used up).
  Result<ReservationId> Reserve(OwnerId owner, MonotonicTime expiry, std::vector<ChunkRef> chunks);
  // Errors: kFenced.
  Status Release(ReservationId id, OwnerId owner);
  Status Renew(ReservationId id, OwnerId owner, MonotonicTime expiry);
  size_t ReleaseOwner(OwnerId owner);
  size_t RevokeReservations();

  // ---- Pins

  // Sets the time anew if it is pinned already. Errors: kBusy (the budget, or the number of pins).
  // Under the lock of the chunk's index shard.
  Status Pin(ChunkRef chunk, MonotonicTime expiry);
  // The reference of the pin, to be given up without a lock; an empty one if there was no pin on
  // this very chunk.
  ChunkRef TakePin(const ChunkRef& chunk);
  // `to` takes the place of `from` in the index: a pin of `from` passes on to it, or lapses when it
  // would exceed the budget. Returns the reference of the old pin. Under the index shard's lock.
  ChunkRef PassPin(const ChunkRef& from, const ChunkRef& to);
  // When the pin ends; empty if there is none.
  std::optional<MonotonicTime> PinnedUntil(const ChunkRef& chunk) const;

  // ---- Both

  struct Expired {
    size_t reservations = 0;
    size_t pins = 0;
  };
  Expired Expire(MonotonicTime now);

  struct Gauges {
    uint64_t reservations = 0, reserved_chunks = 0, reserved_bytes = 0;
    uint64_t pinned_chunks = 0, pinned_bytes = 0;
    uint64_t made = 0, released = 0, expired = 0, revoked = 0, refused = 0;
  };
  Gauges GetGauges() const;

 private:
  struct Reservation {
    OwnerId owner = OwnerId::kDaemon;
    MonotonicTime expiry{};
    std::vector<ChunkRef> chunks;
  };
  struct PinRecord {
    ChunkRef chunk;
    MonotonicTime expiry{};
  };
  using Refs = std::vector<ChunkRef>;  // To be given up after the lock is.

  // Ends a reservation; its references go to `freed`.
  void EndLocked(ReservationId id, Refs& freed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountReserved(ChunkEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UncountReserved(ChunkEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool FitsReserved(const Refs& chunks) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddPinLocked(ChunkRef chunk, MonotonicTime expiry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  PinRecord RemovePinLocked(const ChunkKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Unhold(ChunkEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Limits limits_;
  RetentionPolicy& policy_;

  mutable Mutex mu_;
  absl::flat_hash_map<ReservationId, Reservation> reservations_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<OwnerId, absl::flat_hash_set<ReservationId>> by_owner_ ABSL_GUARDED_BY(mu_);
  absl::btree_set<std::pair<MonotonicTime, ReservationId>> by_expiry_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ChunkKey, PinRecord, KeyHash> pins_ ABSL_GUARDED_BY(mu_);
  absl::btree_set<std::pair<MonotonicTime, ChunkKey>> pins_by_expiry_ ABSL_GUARDED_BY(mu_);
  uint64_t references_ ABSL_GUARDED_BY(mu_) = 0;
  Gauges gauges_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_HOLD_TABLE_H_
