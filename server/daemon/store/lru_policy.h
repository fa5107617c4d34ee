// LruPolicy: least recently used first, and never a chunk before those that need it.
//
// Chunks of a prompt form a chain: one is only useful if all before it are there. A victim is
// therefore a leaf, a chunk that no chunk in the store names as its parent; among the leaves it is
// the one that was used longest ago. When it goes, its parent may become a leaf. Only when every
// leaf is held or in use are chunks with children proposed, oldest first.
//
// Touching writes one number into the chunk and takes no lock: the order of the leaves is corrected
// lazily, when an eviction meets one that was used since it was put in its place. Each touch costs
// at most one such correction.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_LRU_POLICY_H_
#define PENSTOCK_SERVER_DAEMON_STORE_LRU_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "server/daemon/store/key_hash.h"
#include "server/daemon/store/retention.h"

namespace penstock {

class LruPolicy final : public RetentionPolicy {
 public:
  // `clock` tells the present; it must outlive the policy.
  explicit LruPolicy(UseClock& clock) : clock_(clock) {}

  void Admit(RetentionNode& node) override ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(RetentionNode& node) override ABSL_LOCKS_EXCLUDED(mu_);
  void Touch(RetentionNode& node, uint64_t moment) override;
  void Released(RetentionNode& node) override ABSL_LOCKS_EXCLUDED(mu_);
  Victims Propose(const Goal& goal) override ABSL_LOCKS_EXCLUDED(mu_);
  uint32_t Children(const ChunkKey& key) const override ABSL_LOCKS_EXCLUDED(mu_);
  std::string CheckInvariants(size_t admitted) const override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A key that is in the store, or that a chunk in the store names as its parent, or both.
  struct Family {
    RetentionNode* node = nullptr;
    uint32_t children = 0;
  };
  using Order = absl::btree_set<std::pair<uint64_t, RetentionNode*>>;
  struct Search;

  std::string CheckNodeLocked(const RetentionNode& node, uint32_t children) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Place(RetentionNode& node, RetentionNode::Place place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Unplace(RetentionNode& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetLocked(RetentionNode& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ParkLocked(RetentionNode& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UnparkLocked(RetentionNode& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // At most `max_more` victims. True when `order` has nothing left to propose; `in_use` counts
  // those of it that this search passed over.
  bool ProposeFrom(Order& order, size_t max_more, size_t& in_use, Search& search)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  UseClock& clock_;
  mutable Mutex mu_;
  absl::flat_hash_map<ChunkKey, Family, KeyHash> families_ ABSL_GUARDED_BY(mu_);
  Order leaves_ ABSL_GUARDED_BY(mu_);
  Order interior_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_LRU_POLICY_H_
