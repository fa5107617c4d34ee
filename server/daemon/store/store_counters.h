// StoreCounters: the figures behind ChunkStoreStats that are counted as things happen.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_STORE_COUNTERS_H_
#define PENSTOCK_SERVER_DAEMON_STORE_STORE_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "common/base/status.h"

namespace penstock {

using Counter = std::atomic<uint64_t>;
inline void Add(Counter& counter, uint64_t n) { counter.fetch_add(n, std::memory_order_relaxed); }
inline void Subtract(Counter& gauge, uint64_t n) { gauge.fetch_sub(n, std::memory_order_relaxed); }
inline uint64_t Read(const Counter& counter) { return counter.load(std::memory_order_relaxed); }

// Groups that different callers write lie on different cache lines.
struct StoreCounters {
  // Writers.
  alignas(64) Counter begun{0};
  Counter committed{0}, committed_bytes{0}, exists{0};
  std::array<Counter, kCodeCount> refused{};
  std::array<Counter, kCodeCount> failed{};
  Counter evicted_chunks{0}, evicted_bytes{0};
  Counter dropped_chunks{0}, dropped_bytes{0};
  Counter damaged_chunks{0};  // Of the dropped.
  Counter replaced_chunks{0}, replaced_bytes{0};

  // Gauges.
  alignas(64) Counter chunks{0};
  Counter chunk_bytes{0}, detached_chunks{0}, detached_bytes{0};
  Counter chunk_arena_bytes{0};  // As chunk_bytes, in whole granules.

  // Readers.
  alignas(64) Counter hits{0};
  Counter misses{0}, mismatches{0};
  Counter matches{0}, match_keys{0}, matched_keys{0};
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_STORE_COUNTERS_H_
