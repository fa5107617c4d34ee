#include "client/lib/operation_state.h"

#include <unistd.h>

#include <utility>

namespace penstock {

OperationState::OperationState(OperationOwner& owner, Kind kind, const Deadline& deadline,
                               OnDone on_done)
    : owner_(owner),
      kind_(kind),
      deadline_(deadline),
      on_done_(std::move(on_done)),
      pid_(getpid()) {}

bool OperationState::InForkedChild() const { return getpid() != pid_; }

bool OperationState::Wait(const Deadline& deadline) {
  if (Done()) return true;
  if (InForkedChild()) return false;
  MutexLock lock(mu_);
  while (!Done()) {
    if (!changed_.WaitUntil(mu_, deadline.at()) && !Done()) return false;
  }
  return true;
}

void OperationState::Cancel() {
  if (Done() || InForkedChild()) return;
  const Status why(Code::kCancelled);
  // Loop and owner live as long as the operation is not done, which cannot change under mu_.
  {
    MutexLock lock(mu_);
    if (Done()) return;
    if (!owner_.loop().InLoop()) {
      owner_.loop().Post([self = shared_from_this(), why] { self->owner_.Abort(self, why); });
      while (!Done()) changed_.Wait(mu_);
      return;
    }
  }
  // The loop cannot wait for itself: the abort is under way when this returns.
  owner_.Abort(shared_from_this(), why);
}

void OperationState::SetStat(const StatReply& reply) {
  stat_ = reply;
  stat_manifest_.assign(reply.manifest.begin(), reply.manifest.end());
  stat_.manifest = stat_manifest_;
}

void OperationState::Complete(bool in_forked_child) {
  passes_.clear();
  namespaces.clear();
  OnDone on_done = std::exchange(on_done_, nullptr);
  const auto self = shared_from_this();  // A waiter may drop its handle at once.
  {
    MutexLock lock(mu_);
    done_.store(true, std::memory_order_release);
    changed_.SignalAll();
  }
  if (!on_done) return;
  if (in_forked_child) return on_done(*self);  // The loop's thread stayed with the parent.
  owner_.loop().Post([self, on_done = std::move(on_done)] { on_done(*self); });
}

}  // namespace penstock
