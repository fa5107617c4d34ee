// What a ChunkStore is made of. Internal to the store.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_STORE_PARTS_H_
#define PENSTOCK_SERVER_DAEMON_STORE_STORE_PARTS_H_

#include <cstdint>
#include <memory>

#include "common/base/deadline.h"
#include "server/daemon/store/chunk_index.h"
#include "server/daemon/store/chunk_space.h"
#include "server/daemon/store/chunk_store.h"
#include "server/daemon/store/hold_table.h"
#include "server/daemon/store/lru_policy.h"
#include "server/daemon/store/namespace_registry.h"
#include "server/daemon/store/retention.h"
#include "server/daemon/store/store_counters.h"
#include "server/daemon/store/store_options.h"

namespace penstock {

// Members are destroyed in the reverse order: whatever holds references goes before the space.
struct ChunkStore::Parts {
  explicit Parts(const ChunkStoreOptions& wanted)
      : options(wanted),
        start(wanted.clock()),
        namespaces(wanted.max_namespaces, wanted.max_namespace_bytes),
        policy(std::make_unique<LruPolicy>(uses)),
        holds(HoldLimits(wanted), *policy),
        index(wanted.index_shards, *policy, holds, counters) {}

  static HoldTable::Limits HoldLimits(const ChunkStoreOptions& options) {
    const auto arena = static_cast<double>(options.arena.bytes);
    return {.reserved_bytes = static_cast<uint64_t>(arena * options.max_reserved),
            .pinned_bytes = static_cast<uint64_t>(arena * options.max_pinned),
            .reservations = options.max_reservations,
            .references = options.max_reserved_refs,
            .pins = options.max_pins};
  }

  MonotonicTime Now() const { return options.clock(); }
  // Nanoseconds since the store began.
  uint64_t Ticks() const {
    const Duration since = Now() - start;
    return since > Duration::zero() ? static_cast<uint64_t>(since.count()) : 0;
  }
  // The most recent of `count` new moments of use.
  uint64_t Draw(uint64_t count) { return uses.Draw(count, Ticks()); }

  const ChunkStoreOptions options;  // Defaults filled in.
  const MonotonicTime start;
  StoreCounters counters;
  UseClock uses;
  std::unique_ptr<ChunkSpace> space;  // Set by Create().
  NamespaceRegistry namespaces;
  const std::unique_ptr<RetentionPolicy> policy;
  HoldTable holds;
  ChunkIndex index;
};

// Copies every counter and the gauges beside them.
void CopyCounters(const StoreCounters& from, ChunkStoreStats& to);

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_STORE_PARTS_H_
