#include "server/daemon/store/namespace_registry.h"

#include <fmt/format.h>

namespace penstock {
namespace {

NamespaceInfo Describe(const NamespaceRecord& record) {
  return {record.id, record.fingerprint, record.descriptor,
          record.chunks.load(std::memory_order_relaxed),
          record.bytes.load(std::memory_order_relaxed)};
}

}  // namespace

Result<NamespaceId> NamespaceRegistry::Open(const Fingerprint& fingerprint, ByteSpan descriptor) {
  MutexLock lock(mu_);
  if (const auto it = by_fingerprint_.find(fingerprint); it != by_fingerprint_.end()) {
    return it->second->id;
  }
  if (records_.size() >= max_namespaces_) {
    return Status(Code::kResourceExhausted,
                  fmt::format("{} namespaces are open, which is the limit (max_namespaces)",
                              records_.size()));
  }
  if (descriptor.size() > max_descriptor_bytes_ - descriptor_bytes_) {
    return Status(
        Code::kResourceExhausted,
        fmt::format("the descriptors of {} namespaces have {} bytes; {} more would pass "
                    "the limit of {} (max_namespace_bytes)",
                    records_.size(), descriptor_bytes_, descriptor.size(), max_descriptor_bytes_));
  }
  auto record = std::make_unique<NamespaceRecord>();
  record->id = static_cast<NamespaceId>(records_.size() + 1);
  record->fingerprint = fingerprint;
  record->descriptor.assign(descriptor.begin(), descriptor.end());
  descriptor_bytes_ += descriptor.size();
  by_fingerprint_.emplace(fingerprint, record.get());
  records_.push_back(std::move(record));
  return records_.back()->id;
}

NamespaceId NamespaceRegistry::Find(const Fingerprint& fingerprint) const {
  MutexLock lock(mu_);
  const auto it = by_fingerprint_.find(fingerprint);
  return it == by_fingerprint_.end() ? NamespaceId::kNone : it->second->id;
}

NamespaceRecord* NamespaceRegistry::Get(NamespaceId id) const {
  const auto number = static_cast<uint32_t>(id);
  MutexLock lock(mu_);
  return number >= 1 && number <= records_.size() ? records_[number - 1].get() : nullptr;
}

std::optional<NamespaceInfo> NamespaceRegistry::Info(NamespaceId id) const {
  const NamespaceRecord* record = Get(id);
  if (record == nullptr) return std::nullopt;
  return Describe(*record);
}

std::vector<NamespaceInfo> NamespaceRegistry::List() const {
  MutexLock lock(mu_);
  std::vector<NamespaceInfo> list;
  list.reserve(records_.size());
  for (const auto& record : records_) list.push_back(Describe(*record));
  return list;
}

size_t NamespaceRegistry::size() const {
  MutexLock lock(mu_);
  return records_.size();
}

}  // namespace penstock
