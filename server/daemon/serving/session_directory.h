// SessionDirectory: the sessions that are open, for the administration interface. Data threads
// write their own record's figures; others only read them.
//
// Thread safety: every method may be called from any thread.

#ifndef PENSTOCK_SERVER_DAEMON_SERVING_SESSION_DIRECTORY_H_
#define PENSTOCK_SERVER_DAEMON_SERVING_SESSION_DIRECTORY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/transport/session.h"
#include "server/daemon/serving/counters.h"

namespace penstock {

// One open session.
struct SessionRecord {
  uint64_t id = 0;
  SessionInfo info;
  uint32_t data_thread = 0;
  bool internal = false;  // The daemon's own self-check.
  MonotonicTime opened;

  std::atomic<int64_t> latest_message_ns{0};  // MonotonicTime since its epoch.
  Counter requests, stored_bytes, fetched_bytes;
  Gauge in_flight, reservations;
  std::atomic<uint64_t> queued_bytes{0};
};

class SessionDirectory {
 public:
  void Add(std::shared_ptr<SessionRecord> record) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // By id, oldest first.
  std::vector<std::shared_ptr<const SessionRecord>> List() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<SessionRecord>> records_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_SERVING_SESSION_DIRECTORY_H_
