// NamespaceRegistry: the namespaces that a store has opened.
//
// A namespace keeps its place while anybody has a reference to its record: sessions that opened it,
// and its chunks, from the first byte of a store to the last one of a read. One that nobody refers
// to makes room when the table is full.
//
// Thread safety: every method may be called from any thread.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_NAMESPACE_REGISTRY_H_
#define PENSTOCK_SERVER_DAEMON_STORE_NAMESPACE_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/bytes.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/daemon/store/key_hash.h"
#include "server/daemon/store/store_types.h"

namespace penstock {

struct NamespaceRecord {
  NamespaceId id = NamespaceId::kNone;
  Fingerprint fingerprint;
  std::vector<std::byte> descriptor;
  uint64_t last_use = 0;  // Guarded by the lock of the registry.
  std::atomic<uint64_t> chunks{0};
  std::atomic<uint64_t> bytes{0};
};

class NamespaceRegistry {
 public:
  NamespaceRegistry(uint32_t max_namespaces, uint64_t max_descriptor_bytes)
      : max_namespaces_(max_namespaces), max_descriptor_bytes_(max_descriptor_bytes) {}

  // Idempotent. Errors: kResourceExhausted.
  Result<std::shared_ptr<NamespaceRecord>> Open(const Fingerprint& fingerprint,
                                                ByteSpan descriptor);
  NamespaceId Find(const Fingerprint& fingerprint) const;
  // nullptr if there is no such namespace.
  std::shared_ptr<NamespaceRecord> Get(NamespaceId id) const;
  std::optional<NamespaceInfo> Info(NamespaceId id) const;
  std::vector<NamespaceInfo> List() const;
  size_t size() const;

 private:
  // Sees to it that one more, with a descriptor of `bytes`, fits.
  Status MakeRoom(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint32_t max_namespaces_;
  const uint64_t max_descriptor_bytes_;

  mutable Mutex mu_;
  absl::flat_hash_map<Fingerprint, NamespaceId, KeyHash> by_fingerprint_ ABSL_GUARDED_BY(mu_);
  std::map<NamespaceId, std::shared_ptr<NamespaceRecord>> records_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t descriptor_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_NAMESPACE_REGISTRY_H_
