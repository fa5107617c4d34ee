#include "server/daemon/store/lru_policy.h"

#include "server/daemon/store/store_check.h"

namespace penstock {
namespace {

using NodePlace = RetentionNode::Place;

// Corrections of the order in one Propose(), so that it never holds the lock for long.
constexpr size_t kMaxCorrections = 4096;

}  // namespace

// One Propose() in progress.
struct LruPolicy::Search {
  const Goal& goal;
  const uint64_t begun;  // Whatever is used later is not older than what was there.
  Victims victims{};
  uint64_t arena_bytes = 0;
  uint64_t metadata_bytes = 0;
  size_t corrections = 0;

  bool Satisfied() const {
    return arena_bytes >= goal.arena_bytes && metadata_bytes >= goal.metadata_bytes;
  }
  bool Over() const {
    return Satisfied() || victims.nodes.size() >= goal.max_victims ||
           corrections >= kMaxCorrections;
  }
};

void LruPolicy::Place(RetentionNode& node, NodePlace place) {
  node.place = place;
  node.ordered_by = node.last_use.load(std::memory_order_relaxed);
  (place == NodePlace::kLeaf ? leaves_ : interior_).emplace(node.ordered_by, &node);
}

void LruPolicy::Unplace(RetentionNode& node) {
  if (node.place == NodePlace::kLeaf) leaves_.erase({node.ordered_by, &node});
  if (node.place == NodePlace::kInterior) interior_.erase({node.ordered_by, &node});
  node.place = NodePlace::kNowhere;
}

void LruPolicy::Admit(RetentionNode& node) {
  MutexLock lock(mu_);
  Family& own = families_[node.key];
  STORE_CHECK(own.node == nullptr && node.place == NodePlace::kNowhere);
  own.node = &node;
  Place(node, own.children == 0 ? NodePlace::kLeaf : NodePlace::kInterior);
  if (!node.parent) return;
  Family& parent = families_[*node.parent];
  if (++parent.children == 1 && parent.node != nullptr && parent.node->place == NodePlace::kLeaf) {
    Unplace(*parent.node);
    Place(*parent.node, NodePlace::kInterior);
  }
}

void LruPolicy::Forget(RetentionNode& node) {
  MutexLock lock(mu_);
  ForgetLocked(node);
}

void LruPolicy::ForgetLocked(RetentionNode& node) {
  const auto own = families_.find(node.key);
  if (own == families_.end() || own->second.node != &node) return;
  if (node.place == NodePlace::kParked) node.parked.store(false);
  Unplace(node);
  own->second.node = nullptr;
  if (own->second.children == 0) families_.erase(own);
  if (!node.parent) return;
  const auto parent = families_.find(*node.parent);
  STORE_CHECK(parent != families_.end() && parent->second.children > 0);
  if (--parent->second.children > 0) return;
  RetentionNode* const orphaned = parent->second.node;
  if (orphaned == nullptr) {
    families_.erase(parent);
  } else if (orphaned->place == NodePlace::kInterior) {
    Unplace(*orphaned);
    Place(*orphaned, NodePlace::kLeaf);
  }
}

void LruPolicy::Touch(RetentionNode& node, uint64_t moment) {
  node.last_use.store(moment, std::memory_order_relaxed);
}

// A held node is taken out of the order when an eviction meets it, and put back by Released():
// either that sees `parked`, or the eviction sees that nothing holds the node any more.
void LruPolicy::ParkLocked(RetentionNode& node) {
  Unplace(node);
  node.place = NodePlace::kParked;
  node.parked.store(true);
  if (node.holds.load() == 0) UnparkLocked(node);
}

void LruPolicy::UnparkLocked(RetentionNode& node) {
  node.parked.store(false);
  const auto own = families_.find(node.key);
  STORE_CHECK(own != families_.end() && own->second.node == &node);
  Place(node, own->second.children == 0 ? NodePlace::kLeaf : NodePlace::kInterior);
}

void LruPolicy::Released(RetentionNode& node) {
  if (!node.parked.load()) return;
  MutexLock lock(mu_);
  if (node.place == NodePlace::kParked && node.holds.load() == 0) UnparkLocked(node);
}

bool LruPolicy::ProposeFrom(Order& order, size_t max_more, size_t& in_use, Search& search) {
  const size_t enough = search.victims.nodes.size() + max_more;
  while (!search.Over() && search.victims.nodes.size() < enough) {
    if (order.empty()) return true;
    const auto [ordered_by, node] = *order.begin();
    if (ordered_by > search.begun) return order.size() <= in_use;
    if (node->holds.load() > 0) {
      ++search.corrections;
      ParkLocked(*node);
      continue;
    }
    const bool used_now = node->refs.load(std::memory_order_acquire) > 1;
    if (used_now || node->last_use.load(std::memory_order_relaxed) > ordered_by) {
      ++search.corrections;
      if (used_now) {
        ++in_use;
        Touch(*node, clock_.Draw(1, 0));
      }
      const NodePlace place = node->place;
      Unplace(*node);
      Place(*node, place);
      continue;
    }
    ForgetLocked(*node);
    node->refs.fetch_add(1, std::memory_order_relaxed);
    search.victims.nodes.push_back(node);
    search.arena_bytes += node->arena_bytes;
    search.metadata_bytes += node->metadata_bytes;
  }
  return false;
}

RetentionPolicy::Victims LruPolicy::Propose(const Goal& goal) {
  MutexLock lock(mu_);
  Search search{goal, clock_.Last()};
  size_t leaves_in_use = 0, interior_in_use = 0;
  const std::vector<RetentionNode*>& victims = search.victims.nodes;
  while (ProposeFrom(leaves_, goal.max_victims, leaves_in_use, search)) {
    // No leaf is left; whatever goes now may make its parent one.
    const size_t before = victims.size();
    const bool all = ProposeFrom(interior_, 1, interior_in_use, search);
    if (victims.size() > before) continue;
    search.victims.exhausted = all;
    break;
  }
  return std::move(search.victims);
}

uint32_t LruPolicy::Children(const ChunkKey& key) const {
  MutexLock lock(mu_);
  const auto own = families_.find(key);
  return own == families_.end() ? 0 : own->second.children;
}

std::string LruPolicy::CheckNodeLocked(const RetentionNode& node, uint32_t children) const {
  const std::pair at{node.ordered_by, const_cast<RetentionNode*>(&node)};
  const bool leaf = leaves_.contains(at), interior = interior_.contains(at);
  const bool parked = node.place == NodePlace::kParked;
  const bool placed = parked          ? !leaf && !interior && node.holds.load() > 0
                      : children == 0 ? leaf && !interior && node.place == NodePlace::kLeaf
                                      : interior && !leaf && node.place == NodePlace::kInterior;
  if (placed && node.parked.load() == parked) return "";
  return "a chunk is not in its place: " + node.key.ToShortHex();
}

std::string LruPolicy::CheckInvariants(size_t admitted) const {
  MutexLock lock(mu_);
  absl::flat_hash_map<ChunkKey, uint32_t, KeyHash> children;
  size_t nodes = 0, parked = 0;
  for (const auto& [key, family] : families_) {
    if (family.node == nullptr) continue;
    ++nodes;
    if (family.node->place == NodePlace::kParked) ++parked;
    if (family.node->parent) ++children[*family.node->parent];
    std::string wrong = CheckNodeLocked(*family.node, family.children);
    if (!wrong.empty()) return wrong;
  }
  if (nodes != admitted || leaves_.size() + interior_.size() + parked != nodes) {
    return "the policy orders more chunks than the index has, or fewer";
  }
  for (const auto& [key, family] : families_) {
    const auto counted = children.find(key);
    const uint32_t count = counted == children.end() ? 0 : counted->second;
    if (count != family.children || (count == 0 && family.node == nullptr)) {
      return "children are miscounted of " + key.ToShortHex();
    }
  }
  return "";
}

}  // namespace penstock
