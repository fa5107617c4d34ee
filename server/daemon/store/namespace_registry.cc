#include "server/daemon/store/namespace_registry.h"

#include <fmt/format.h>

#include <algorithm>

namespace penstock {
namespace {

NamespaceInfo Describe(const NamespaceRecord& record) {
  return {record.id, record.fingerprint, record.descriptor,
          record.chunks.load(std::memory_order_relaxed),
          record.bytes.load(std::memory_order_relaxed)};
}

}  // namespace

Result<std::shared_ptr<NamespaceRecord>> NamespaceRegistry::Open(const Fingerprint& fingerprint,
                                                                 ByteSpan descriptor) {
  MutexLock lock(mu_);
  if (const auto it = by_fingerprint_.find(fingerprint); it != by_fingerprint_.end()) {
    const std::shared_ptr<NamespaceRecord>& record = records_.at(it->second);
    record->last_use = ++uses_;
    return record;
  }
  PENSTOCK_RETURN_IF_ERROR(MakeRoom(descriptor.size()));
  auto record = std::make_shared<NamespaceRecord>();
  record->id = static_cast<NamespaceId>(++last_id_);
  record->fingerprint = fingerprint;
  record->descriptor.assign(descriptor.begin(), descriptor.end());
  record->last_use = ++uses_;
  descriptor_bytes_ += descriptor.size();
  by_fingerprint_.emplace(fingerprint, record->id);
  records_.emplace(record->id, record);
  return record;
}

Status NamespaceRegistry::MakeRoom(uint64_t bytes) {
  const auto fits = [&](size_t count, uint64_t taken) {
    return count < max_namespaces_ && bytes <= max_descriptor_bytes_ &&
           taken <= max_descriptor_bytes_ - bytes;
  };
  if (fits(records_.size(), descriptor_bytes_)) return Status::Ok();
  std::vector<NamespaceRecord*> idle;
  uint64_t idle_bytes = 0;
  for (const auto& [id, record] : records_) {
    // Ours is the only reference, and others are only made from it under the lock.
    if (record.use_count() > 1) continue;
    idle.push_back(record.get());
    idle_bytes += record->descriptor.size();
  }
  if (records_.size() - idle.size() >= max_namespaces_) {
    return Status(Code::kResourceExhausted,
                  fmt::format("{} namespaces are in use (open in a session, or with chunks), which "
                              "is the limit (max_namespaces)",
                              records_.size()));
  }
  if (!fits(records_.size() - idle.size(), descriptor_bytes_ - idle_bytes)) {
    return Status(
        Code::kResourceExhausted,
        fmt::format("the descriptors of {} namespaces in use have {} bytes; {} more would pass "
                    "the limit of {} (max_namespace_bytes)",
                    records_.size() - idle.size(), descriptor_bytes_ - idle_bytes, bytes,
                    max_descriptor_bytes_));
  }
  std::sort(idle.begin(), idle.end(), [](const NamespaceRecord* a, const NamespaceRecord* b) {
    return a->last_use < b->last_use;
  });
  for (NamespaceRecord* const record : idle) {
    if (fits(records_.size(), descriptor_bytes_)) break;
    descriptor_bytes_ -= record->descriptor.size();
    by_fingerprint_.erase(record->fingerprint);
    records_.erase(NamespaceId{record->id});  // A copy: the record goes with it.
  }
  return Status::Ok();
}

NamespaceId NamespaceRegistry::Find(const Fingerprint& fingerprint) const {
  MutexLock lock(mu_);
  const auto it = by_fingerprint_.find(fingerprint);
  return it == by_fingerprint_.end() ? NamespaceId::kNone : it->second;
}

std::shared_ptr<NamespaceRecord> NamespaceRegistry::Get(NamespaceId id) const {
  MutexLock lock(mu_);
  const auto it = records_.find(id);
  return it == records_.end() ? nullptr : it->second;
}

std::optional<NamespaceInfo> NamespaceRegistry::Info(NamespaceId id) const {
  const std::shared_ptr<NamespaceRecord> record = Get(id);
  if (record == nullptr) return std::nullopt;
  return Describe(*record);
}

std::vector<NamespaceInfo> NamespaceRegistry::List() const {
  MutexLock lock(mu_);
  std::vector<NamespaceInfo> list;
  list.reserve(records_.size());
  for (const auto& [id, record] : records_) list.push_back(Describe(*record));
  return list;
}

size_t NamespaceRegistry::size() const {
  MutexLock lock(mu_);
  return records_.size();
}

}  // namespace penstock
