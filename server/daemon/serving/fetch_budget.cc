#include "server/daemon/serving/fetch_budget.h"

namespace penstock {

bool FetchBudget::Share::HasRoom(const void* chunk, uint64_t more, uint64_t limit) const {
  if (bytes == 0 || holds.contains(chunk)) return true;
  return bytes < limit && more <= limit - bytes;
}

void FetchBudget::Share::Add(const void* chunk, uint64_t more) {
  if (++holds[chunk] == 1) bytes += more;
}

void FetchBudget::Share::Remove(const void* chunk, uint64_t less) {
  const auto it = holds.find(chunk);
  if (--it->second > 0) return;
  holds.erase(it);
  bytes -= less;
}

Result<FetchBudget::Hold> FetchBudget::Take(uint64_t session, const ChunkRef& chunk) {
  const void* const id = chunk.id();
  const uint64_t more = chunk.bytes();
  MutexLock lock(mu_);
  const auto mine = sessions_.find(session);
  const uint64_t my_share = chunk.kept() ? max_bytes_ / 4 * 3 : max_bytes_ / 2;
  const bool fits_mine = mine == sessions_.end() || mine->second.HasRoom(id, more, my_share);
  if (!fits_mine || !all_.HasRoom(id, more, max_bytes_)) {
    return Status(Code::kBusy);  // Told as an item's status, which has no words.
  }
  all_.Add(id, more);
  sessions_[session].Add(id, more);
  return Hold(this, session, id, more);
}

void FetchBudget::Return(uint64_t session, const void* chunk, uint64_t bytes) {
  MutexLock lock(mu_);
  all_.Remove(chunk, bytes);
  const auto it = sessions_.find(session);
  it->second.Remove(chunk, bytes);
  if (it->second.holds.empty()) sessions_.erase(it);
}

uint64_t FetchBudget::bytes() const {
  MutexLock lock(mu_);
  return all_.bytes;
}

}  // namespace penstock
