// Gate: lets everything in flight finish before what it uses goes away.
//
// A transfer holds a Pass; its memory is released after Close().

#ifndef PENSTOCK_COMMON_BASE_GATE_H_
#define PENSTOCK_COMMON_BASE_GATE_H_

#include <optional>
#include <utility>

#include "common/base/mutex.h"

namespace penstock {

class Gate {
 public:
  // Proof that the gate cannot finish closing yet. Move-only.
  class [[nodiscard]] Pass {
   public:
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (gate_ != nullptr) gate_->Leave();
    }

   private:
    friend class Gate;
    explicit Pass(Gate* gate) : gate_(gate) {}
    Gate* gate_;
  };

  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // Empty once Close() has begun.
  std::optional<Pass> TryEnter() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (closed_) return std::nullopt;
    ++inside_;
    return Pass(this);
  }

  // Refuses newcomers, then blocks until every Pass is gone. Idempotent.
  void Close() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    closed_ = true;
    while (inside_ > 0) changed_.Wait(mu_);
  }

 private:
  void Leave() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (--inside_ == 0) changed_.SignalAll();  // Under mu_: *this may be destroyed next.
  }

  Mutex mu_;
  CondVar changed_;
  int inside_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_BASE_GATE_H_
