// The requests that are answered at once: everything but FETCH and STORE.

#ifndef PENSTOCK_SERVER_DAEMON_SERVING_SIMPLE_REQUESTS_H_
#define PENSTOCK_SERVER_DAEMON_SERVING_SIMPLE_REQUESTS_H_

#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/bytes.h"
#include "common/base/deadline.h"
#include "common/transport/frame.h"
#include "server/daemon/serving/namespace_view.h"
#include "server/daemon/serving/serving.h"

namespace penstock {

// The reservations that one session made and has not given back, with their ends. Whoever names
// one in a FETCH is told apart from whoever names a lost one without asking the store.
class SessionReservations {
 public:
  explicit SessionReservations(size_t limit) : limit_(limit) {}
  // Whether one more may be made now. Forgets those that have ended.
  bool HasRoom(MonotonicTime now);
  void Add(ReservationId id, MonotonicTime end) { ends_.insert_or_assign(id, end); }
  void Remove(ReservationId id) { ends_.erase(id); }
  bool Holds(ReservationId id, MonotonicTime now) const;
  size_t size() const { return ends_.size(); }

 private:
  const size_t limit_;
  absl::flat_hash_map<ReservationId, MonotonicTime> ends_;
};

// What a request is answered from.
struct SimpleContext {
  Serving& serving;
  ServingCounters& counters;
  NamespaceView& namespaces;
  SessionReservations& reservations;
  OwnerId owner;
};

struct Answer {
  Code code = Code::kOk;
  std::vector<std::byte> body;  // Of the kReply.
};

// Carries out one request. `type` is any but kFetch, kStore and kCancel; types that are reserved or
// unknown are answered with kUnimplemented.
Answer AnswerSimpleRequest(const SimpleContext& context, MessageType type, ByteSpan body);

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_SERVING_SIMPLE_REQUESTS_H_
