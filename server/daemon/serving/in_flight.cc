#include "server/daemon/serving/in_flight.h"

namespace penstock {

std::optional<InFlight::Slot> InFlight::TryEnter() {
  MutexLock lock(mu_);
  if (count_ >= limit_) return std::nullopt;
  ++count_;
  return Slot(this);
}

uint32_t InFlight::count() const {
  MutexLock lock(mu_);
  return count_;
}

bool InFlight::WaitIdle(const Deadline& deadline) {
  MutexLock lock(mu_);
  while (count_ > 0) {
    if (!idle_.WaitUntil(mu_, deadline.at()) && count_ > 0) return false;
  }
  return true;
}

void InFlight::Leave() {
  MutexLock lock(mu_);
  if (--count_ == 0) idle_.SignalAll();
}

}  // namespace penstock
