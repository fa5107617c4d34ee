// InFlight: how many requests all sessions together are working on, bounded, and a way to wait
// until there are none.
//
// Thread safety: every method may be called from any thread.

#ifndef PENSTOCK_SERVER_DAEMON_SERVING_IN_FLIGHT_H_
#define PENSTOCK_SERVER_DAEMON_SERVING_IN_FLIGHT_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "common/base/deadline.h"
#include "common/base/mutex.h"

namespace penstock {

class InFlight {
 public:
  // One request's place. Gives it back when destroyed. Move-only; must not outlive the InFlight.
  class [[nodiscard]] Slot {
   public:
    Slot(Slot&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}
    Slot& operator=(Slot&&) = delete;
    ~Slot() {
      if (owner_ != nullptr) owner_->Leave();
    }

   private:
    friend class InFlight;
    explicit Slot(InFlight* owner) : owner_(owner) {}
    InFlight* owner_;
  };

  explicit InFlight(uint32_t limit) : limit_(limit) {}
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  // Empty when `limit` requests are in flight.
  std::optional<Slot> TryEnter() ABSL_LOCKS_EXCLUDED(mu_);
  uint32_t count() const ABSL_LOCKS_EXCLUDED(mu_);
  uint32_t limit() const { return limit_; }
  // False when `deadline` came before there were none.
  bool WaitIdle(const Deadline& deadline) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Leave() ABSL_LOCKS_EXCLUDED(mu_);

  const uint32_t limit_;
  mutable Mutex mu_;
  CondVar idle_;
  uint32_t count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_SERVING_IN_FLIGHT_H_
