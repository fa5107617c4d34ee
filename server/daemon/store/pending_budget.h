// PendingBudget: bounds the bytes in chunks that were begun and not committed, in all and for each
// owner, so that one client that is slow or frozen cannot take the room of all others.
//
// Thread safety: every method may be called from any thread.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_PENDING_BUDGET_H_
#define PENSTOCK_SERVER_DAEMON_STORE_PENDING_BUDGET_H_

#include <fmt/format.h>

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/daemon/store/store_types.h"

namespace penstock {

class PendingBudget {
 public:
  PendingBudget(uint64_t max_bytes, uint64_t max_bytes_of_owner)
      : max_bytes_(max_bytes), max_bytes_of_owner_(max_bytes_of_owner) {}

  // One chunk more, however large, is always allowed where there is none. Errors: kBusy.
  Status Take(OwnerId owner, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (bytes_ > 0 && (bytes_ >= max_bytes_ || bytes > max_bytes_ - bytes_)) {
      return Busy("all clients", bytes_, max_bytes_, bytes);
    }
    Share& share = owners_[owner];
    if (share.bytes > 0 &&
        (share.bytes >= max_bytes_of_owner_ || bytes > max_bytes_of_owner_ - share.bytes)) {
      return Busy("this client", share.bytes, max_bytes_of_owner_, bytes);
    }
    bytes_ += bytes;
    ++chunks_;
    share.bytes += bytes;
    ++share.chunks;
    return Status::Ok();
  }

  void Return(OwnerId owner, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    bytes_ -= bytes;
    --chunks_;
    const auto it = owners_.find(owner);
    it->second.bytes -= bytes;
    if (--it->second.chunks == 0) owners_.erase(it);
  }

  uint64_t bytes() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return bytes_;
  }
  uint64_t chunks() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return chunks_;
  }

 private:
  struct Share {
    uint64_t bytes = 0;
    uint64_t chunks = 0;
  };

  static Status Busy(const char* whose, uint64_t pending, uint64_t limit, uint64_t more) {
    return Status(Code::kBusy, fmt::format("stores in progress of {} hold {} of {} bytes; {} more "
                                           "do not fit (retry in 5 ms)",
                                           whose, pending, limit, more));
  }

  const uint64_t max_bytes_;
  const uint64_t max_bytes_of_owner_;

  mutable Mutex mu_;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t chunks_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<OwnerId, Share> owners_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_PENDING_BUDGET_H_
