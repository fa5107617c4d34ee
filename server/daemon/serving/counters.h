// ServingCounters: what the daemon did for its clients. Every figure is counted in one place, at
// the outcome, never at the intention, so that the sums hold whenever nothing is in flight:
//
//   store items = committed + exists + sum(refused) + sum(failed)
//   fetch items = delivered + missed + sum(refused) + sum(failed)
//
// Thread safety: every method may be called from any thread.

#ifndef PENSTOCK_SERVER_DAEMON_SERVING_COUNTERS_H_
#define PENSTOCK_SERVER_DAEMON_SERVING_COUNTERS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/deadline.h"
#include "common/base/status.h"
#include "common/metrics/metrics.h"
#include "common/transport/frame.h"
#include "server/daemon/store/store_types.h"

namespace penstock {

using metrics::Counter;
using metrics::Gauge;

// One counter a status code.
class CodeCounters {
 public:
  Counter& operator[](Code code) { return counters_[Index(code)]; }
  const Counter& operator[](Code code) const { return counters_[Index(code)]; }
  uint64_t Sum() const;

 private:
  static size_t Index(Code code) {
    const auto number = static_cast<size_t>(code);
    return number < kCodeCount ? number : static_cast<size_t>(Code::kInternal);
  }
  std::array<Counter, kCodeCount> counters_;
};

// The requests that are counted by name.
enum class RequestKind : uint8_t {
  kOpenNamespace,
  kMatch,
  kFetch,
  kStore,
  kTouch,
  kPin,
  kDrop,
  kRelease,
  kStat,
  kReserved,  // HINT, PULL, PUSH: not done by this build.
  kUnknown,   // A type that this build does not know: a newer client.
};
inline constexpr size_t kRequestKinds = 11;
RequestKind KindOf(MessageType type);
// "match"; the label of the metrics.
const char* RequestKindName(RequestKind kind);

// What one namespace saw.
struct NamespaceCounters {
  Counter committed, committed_bytes;
  Counter delivered, delivered_bytes;
  Counter missed;
};

struct ServingCounters {
  // Namespaces with counters of their own: the first ones that were opened. The others share
  // slot 0, so that the number of labels is bounded.
  static constexpr uint32_t kNamespaceSlots = 64;

  // Requests by kind and by the status of their reply, and how long they took. A request of a
  // session that died before the reply counts as kDisconnected.
  struct Requests {
    CodeCounters replies;
    metrics::Histogram latency{metrics::Buckets::Seconds()};
  };
  std::array<Requests, kRequestKinds> requests;
  Counter cancels;

  // Items of STORE.
  Counter store_committed, store_committed_bytes;
  Counter store_exists;
  CodeCounters store_refused;  // Never granted space.
  CodeCounters store_failed;   // Granted, and lost.
  uint64_t StoreItems() const {
    return store_committed.value() + store_exists.value() + store_refused.Sum() +
           store_failed.Sum();
  }

  // Items of FETCH. Delivered: all bytes were taken by the wire.
  Counter fetch_delivered, fetch_delivered_bytes;
  Counter fetch_missed;
  CodeCounters fetch_refused;       // There, but not for this reader or this buffer.
  CodeCounters fetch_failed;        // Promised in the reply and not delivered.
  Counter fetch_lost_reservations;  // Fetches that named a reservation which is gone.
  uint64_t FetchItems() const {
    return fetch_delivered.value() + fetch_missed.value() + fetch_refused.Sum() +
           fetch_failed.Sum();
  }

  // Keys of MATCH, once a group: asked for, and part of the answer.
  Counter match_keys, matched_keys;

  // DATA that belonged to nothing (an unknown request, an item that had failed) or was wrong.
  Counter data_discarded, data_discarded_bytes;

  Counter sessions_opened;
  CodeCounters sessions_closed;   // By why.
  CodeCounters sessions_refused;  // Connections that never became a session, by why.

  // Gauges.
  Gauge sessions;
  Gauge stores_in_flight, fetches_in_flight;
  Gauge fetch_held_chunks;    // Chunks that fetches keep from being reused.
  Gauge fetch_queued_bytes;   // Given to the wire and not yet taken.
  Gauge store_pending_items;  // Granted and not final.

  NamespaceCounters& ns(NamespaceId id) { return namespaces[Slot(id)]; }
  static uint32_t Slot(NamespaceId id) {
    const auto number = static_cast<uint64_t>(id);
    return number <= kNamespaceSlots ? static_cast<uint32_t>(number) : 0;
  }
  std::array<NamespaceCounters, kNamespaceSlots + 1> namespaces;

  void CountReply(RequestKind kind, Code code, MonotonicTime since);
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_SERVING_COUNTERS_H_
