#include "server/daemon/serving/session_directory.h"

#include <algorithm>
#include <utility>

namespace penstock {

void SessionDirectory::Add(std::shared_ptr<SessionRecord> record) {
  MutexLock lock(mu_);
  const uint64_t id = record->id;
  records_.insert_or_assign(id, std::move(record));
}

void SessionDirectory::Remove(uint64_t id) {
  MutexLock lock(mu_);
  records_.erase(id);
}

std::vector<std::shared_ptr<const SessionRecord>> SessionDirectory::List() const {
  std::vector<std::shared_ptr<const SessionRecord>> list;
  {
    MutexLock lock(mu_);
    list.reserve(records_.size());
    for (const auto& [id, record] : records_) list.push_back(record);
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a->id < b->id; });
  return list;
}

size_t SessionDirectory::size() const {
  MutexLock lock(mu_);
  return records_.size();
}

}  // namespace penstock
