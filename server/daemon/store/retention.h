// RetentionPolicy: decides which chunk goes when space is needed. It never evicts: it proposes, and
// the store unlinks what it still can.
//
// Lock order: index shard, then the policy's own lock. A policy calls nobody while it holds it.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_RETENTION_H_
#define PENSTOCK_SERVER_DAEMON_STORE_RETENTION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/deadline.h"
#include "common/keys/chunk_key.h"

namespace penstock {

// What a policy knows of one chunk; the head of the store's own record of it. The first group is
// written by readers without a lock, the second is constant, the third belongs to the policy.
struct RetentionNode {
  std::atomic<uint32_t> refs{1};      // 1: nobody but the index holds it.
  std::atomic<uint32_t> holds{0};     // Reservations and pins; each has a reference as well.
  std::atomic<uint64_t> last_use{0};  // A moment of the UseClock.

  uint64_t arena_bytes = 0;  // What evicting it frees.
  uint64_t metadata_bytes = 0;
  ChunkKey key;
  std::optional<ChunkKey> parent;

  enum class Place : uint8_t { kNowhere, kLeaf, kInterior, kParked };
  Place place = Place::kNowhere;
  std::atomic<bool> parked{false};  // place == kParked, for a look without the lock.
  uint64_t ordered_by = 0;          // last_use when it was put in its place.
};

// Moments of use: unique, growing, and close to nanoseconds since the store began.
class UseClock {
 public:
  // Draws `count` moments and returns the most recent; the others are the numbers right below it.
  uint64_t Draw(uint64_t count, uint64_t now) {
    uint64_t last = last_.load(std::memory_order_relaxed);
    uint64_t next;
    do {
      next = last + count > now ? last + count : now;
      // More than `count` apart from `last`, or exactly: the moments below `next` are unused.
    } while (!last_.compare_exchange_weak(last, next, std::memory_order_relaxed));
    return next;
  }
  uint64_t Last() const { return last_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> last_{0};
};

class RetentionPolicy {
 public:
  virtual ~RetentionPolicy() = default;

  // The chunk is in the store now. Its last_use is set. Under the lock of its index shard.
  virtual void Admit(RetentionNode& node) = 0;
  // It is not any more. No effect when it was not admitted. Under the lock of its index shard, and
  // before the index gives up its reference.
  virtual void Forget(RetentionNode& node) = 0;
  // It was used at `moment`. Takes no lock.
  virtual void Touch(RetentionNode& node, uint64_t moment) = 0;
  // node.holds has become 0. The caller has a reference.
  virtual void Released(RetentionNode& node) = 0;

  struct Goal {
    uint64_t arena_bytes = 0;  // Both to be reached...
    uint64_t metadata_bytes = 0;
    size_t max_victims = 64;  // ...by at most this many victims.
  };
  struct Victims {
    // Not admitted any more, in the order in which they should go; each with a reference added for
    // the caller, who unlinks them or admits them again.
    std::vector<RetentionNode*> nodes;
    // Nothing is left that could be proposed: all else is held, or in use at this moment.
    bool exhausted = false;
  };
  // Bounded work: may return fewer than asked for without being exhausted.
  virtual Victims Propose(const Goal& goal) = 0;

  // Chunks in the store that name `key` as their parent.
  virtual uint32_t Children(const ChunkKey& key) const = 0;

  // Walks everything; empty if all is well and `admitted` nodes are there, otherwise what is not.
  // For tests.
  virtual std::string CheckInvariants(size_t admitted) const = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_RETENTION_H_
