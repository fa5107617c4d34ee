// Serving: what all sessions of one daemon share.

#ifndef PENSTOCK_SERVER_DAEMON_SERVING_SERVING_H_
#define PENSTOCK_SERVER_DAEMON_SERVING_SERVING_H_

#include <atomic>
#include <cstdint>

#include "common/base/deadline.h"
#include "server/daemon/serving/counters.h"
#include "server/daemon/serving/early_data.h"
#include "server/daemon/serving/fetch_budget.h"
#include "server/daemon/serving/in_flight.h"
#include "server/daemon/serving/session_directory.h"
#include "server/daemon/serving/worker_pool.h"
#include "server/daemon/store/chunk_store.h"

namespace penstock {

struct ServingLimits {
  uint32_t max_in_flight = 16384;  // FETCH and STORE requests of all sessions together.
  // Bytes of one session's fetches that are given to the wire at a time; the next ones follow as
  // those drain.
  uint64_t fetch_window_bytes = 16u << 20;
  // Share of the arena in chunks that fetches hold; FetchBudget says how much of it a session may
  // have. kBusy beyond.
  double max_fetching = 0.50;
  // Longest DATA frame: long enough that its header costs nothing, short enough that requests
  // which share a session take turns.
  uint64_t frame_bytes = 4u << 20;
  // Chunks up to this size are checked on the data thread: handing over costs more than that.
  uint64_t inline_commit_bytes = 256u << 10;
  // Bytes of manifests in one FETCH reply; items beyond are answered with kTooLarge.
  uint64_t reply_manifest_bytes = 6u << 20;
  // Data of all sessions that overtook its request and waits for it.
  uint64_t early_bytes = 64u << 20;
  Duration default_deadline = std::chrono::seconds(30);  // For requests that state none.
  Duration max_deadline = std::chrono::hours(1);         // Longer ones are cut to it.
  // After a STORE's deadline, for bytes that were sent before it and are still on their way.
  Duration store_grace = std::chrono::milliseconds(250);
  uint32_t retry_after_ms = 10;                  // Told with kBusy.
  uint32_t max_reservations_per_session = 4096;  // At a time.
};

// Outlives every session.
struct Serving {
  Serving(ChunkStore& the_store, WorkerPool& the_workers, const ServingLimits& the_limits)
      : store(the_store),
        workers(the_workers),
        limits(the_limits),
        in_flight(the_limits.max_in_flight),
        early(the_limits.early_bytes),
        fetching(static_cast<uint64_t>(the_limits.max_fetching *
                                       static_cast<double>(the_store.arena().size()))) {}

  ChunkStore& store;
  WorkerPool& workers;
  const ServingLimits limits;
  InFlight in_flight;
  EarlyBudget early;
  FetchBudget fetching;
  ServingCounters counters;
  // The self-check counts here, so that the figures above are the clients' alone.
  ServingCounters internal_counters;
  SessionDirectory directory;
  std::atomic<uint64_t> next_owner{1};
  // The daemon is ending: new requests are refused, those in flight finish.
  std::atomic<bool> draining{false};
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_SERVING_SERVING_H_
