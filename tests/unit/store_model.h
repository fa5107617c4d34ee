// A model of ChunkStore, for store_model_test.cc: what chunk_store.h promises, in maps and lists
// and without any cleverness. It follows what the store does; where the contract leaves the store a
// choice (which chunk goes), it judges the choice afterwards.

#ifndef PENSTOCK_TESTS_UNIT_STORE_MODEL_H_
#define PENSTOCK_TESTS_UNIT_STORE_MODEL_H_

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/daemon/store/chunk_store.h"

namespace penstock {

// One value that a client began to store: pending, in the store, or gone from it and still read.
struct ModelChunk {
  ChunkKey key;
  NamespaceId ns = NamespaceId::kNone;
  std::optional<ChunkKey> parent;
  uint64_t version = 0;
  uint64_t bytes = 0;
  uint64_t arena_bytes = 0;
  uint32_t flags = 0;
  uint64_t tag = 0;

  enum class Where { kPending, kStored, kGone } where = Where::kPending;
  uint32_t readers = 0;       // ChunkRefs of the test.
  uint32_t reservations = 0;  // Places in reservations that nobody is known to have ended.
  std::optional<MonotonicTime> pin;
  // When it was used last. An eviction may refresh a chunk that is being read, or not: then it is
  // something between the two.
  uint64_t used_from = 0, used_to = 0;

  void Used(uint64_t moment) { used_from = used_to = moment; }
  // By somebody whose time is not up.
  bool Held(MonotonicTime now) const { return readers > 0 || Promised(now); }
  bool Promised(MonotonicTime now) const { return reserved_until > now || (pin && *pin > now); }
  // Not even by a promise that has run out and was not swept up yet.
  bool Free() const { return readers == 0 && reservations == 0 && !pin; }

  MonotonicTime reserved_until{};  // The latest of its reservations.
};
using ModelRef = std::shared_ptr<ModelChunk>;

struct ModelReservation {
  OwnerId owner = OwnerId::kDaemon;
  MonotonicTime expiry{};
  std::vector<ModelRef> chunks;
};

// What lies in the arena for whose sake, in bytes of the payload and of the arena.
struct ModelSums {
  uint64_t chunks = 0, bytes = 0, arena_bytes = 0;
  void Add(const ModelChunk& chunk) {
    ++chunks;
    bytes += chunk.bytes;
    arena_bytes += chunk.arena_bytes;
  }
};

class StoreModel {
 public:
  explicit StoreModel(const ChunkStoreOptions& options, uint64_t arena_bytes)
      : options_(options), arena_bytes_(arena_bytes) {}

  std::map<ChunkKey, ModelRef> stored;
  std::map<ReservationId, ModelReservation> reservations;
  std::set<ModelRef> pending;
  std::set<ModelRef> gone;  // Unlinked, and in use.

  // ---- Questions

  ModelRef Find(const ChunkKey& key) const {
    const auto it = stored.find(key);
    return it == stored.end() ? nullptr : it->second;
  }
  static bool MayRead(const ModelChunk& chunk, const ReadTerms& terms) {
    const bool inexact = (chunk.flags & (kManifestLossy | kManifestQueryDependent)) != 0;
    return chunk.ns == terms.ns && (!terms.tag || chunk.tag == 0 || chunk.tag == *terms.tag) &&
           !(terms.want_exact && inexact);
  }
  Code Lookup(const ChunkKey& key, const ReadTerms& terms) const {
    const ModelRef chunk = Find(key);
    if (chunk == nullptr) return Code::kMiss;
    return MayRead(*chunk, terms) ? Code::kOk : Code::kFormatMismatch;
  }
  uint32_t Children(const ChunkKey& key) const {
    uint32_t count = 0;
    for (const auto& [of, chunk] : stored) count += chunk->parent == key ? 1 : 0;
    return count;
  }
  // By the definition in store_types.h, longest first.
  uint32_t LongestPrefix(std::span<const KeyGroup> groups) const {
    for (size_t n = groups[0].keys.size(); n > 0; --n) {
      if (std::all_of(groups.begin(), groups.end(), [&](const KeyGroup& group) {
            size_t i = group.window == 0 || group.window > n ? 0 : n - group.window;
            while (i < n && Lookup(group.keys[i], group.terms) == Code::kOk) ++i;
            return i == n;
          })) {
        return static_cast<uint32_t>(n);
      }
    }
    return 0;
  }

  // ---- Budgets

  ModelSums Pending(std::optional<OwnerId> owner = std::nullopt) const {
    ModelSums sums;
    for (const ModelRef& chunk : pending) {
      if (!owner || owners_.at(chunk) == *owner) sums.Add(*chunk);
    }
    return sums;
  }
  bool PendingFits(OwnerId owner, uint64_t more) const {
    const auto limit = Fraction(options_.max_pending);
    const auto own_limit = Fraction(options_.max_pending * options_.max_pending_per_owner);
    const uint64_t all = Pending().bytes, own = Pending(owner).bytes;
    return (all == 0 || all + more <= limit) && (own == 0 || own + more <= own_limit);
  }
  bool PinFits(uint64_t more) const {
    return Pinned().bytes + more <= Fraction(options_.max_pinned);
  }
  bool ReservationFits(const std::vector<ModelRef>& chunks) const {
    const std::set<ModelRef> distinct(chunks.begin(), chunks.end());
    uint64_t more = 0;
    for (const ModelRef& chunk : distinct) more += chunk->reservations == 0 ? chunk->bytes : 0;
    return reservations.size() < options_.max_reservations &&
           Reserved().bytes + more <= Fraction(options_.max_reserved);
  }
  ModelSums Pinned() const {
    ModelSums sums;
    for (const auto& [key, chunk] : stored) {
      if (chunk->pin) sums.Add(*chunk);
    }
    return sums;
  }
  ModelSums Reserved() const {
    std::set<ModelRef> distinct;
    for (const auto& [id, one] : reservations)
      distinct.insert(one.chunks.begin(), one.chunks.end());
    ModelSums sums;
    for (const ModelRef& chunk : distinct) sums.Add(*chunk);
    return sums;
  }
  ModelSums Gone() const {
    ModelSums sums;
    for (const ModelRef& chunk : gone) sums.Add(*chunk);
    return sums;
  }
  ModelSums Stored() const {
    ModelSums sums;
    for (const auto& [key, chunk] : stored) sums.Add(*chunk);
    return sums;
  }
  uint64_t UsedArena() const {
    return Pending().arena_bytes + Stored().arena_bytes + Gone().arena_bytes;
  }
  // What only a promise keeps that is over.
  uint64_t Lapsed(MonotonicTime now) const {
    uint64_t bytes = 0;
    for (const ModelRef& chunk : gone) bytes += chunk->Held(now) ? 0 : chunk->arena_bytes;
    return bytes;
  }
  uint64_t FreeArena() const { return arena_bytes_ - UsedArena(); }
  uint64_t Headroom() const { return Fraction(options_.headroom); }

  // ---- Changes

  void Begin(const ModelRef& chunk, OwnerId owner) {
    pending.insert(chunk);
    owners_[chunk] = owner;
  }
  void EndPending(const ModelRef& chunk) {
    pending.erase(chunk);
    owners_.erase(chunk);
  }
  OwnerId OwnerOf(const ModelRef& chunk) const { return owners_.at(chunk); }
  void Store(const ModelRef& chunk) {
    chunk->where = ModelChunk::Where::kStored;
    stored[chunk->key] = chunk;
  }
  void Unlink(const ModelRef& chunk) {
    chunk->where = ModelChunk::Where::kGone;
    chunk->pin.reset();
    if (Find(chunk->key) == chunk) stored.erase(chunk->key);
    if (!chunk->Free()) gone.insert(chunk);
  }
  void Reserve(ReservationId id, ModelReservation made) {
    for (const ModelRef& chunk : made.chunks) ++chunk->reservations;
    reservations[id] = std::move(made);
    Recount();
  }
  void Renew(ReservationId id, MonotonicTime expiry) {
    reservations.at(id).expiry = expiry;
    Recount();
  }
  void Release(ReservationId id) {
    for (const ModelRef& chunk : reservations.at(id).chunks) --chunk->reservations;
    reservations.erase(id);
    Recount();
  }
  void Read(const ModelRef& chunk) { ++chunk->readers; }
  void EndRead(const ModelRef& chunk) {
    --chunk->readers;
    if (chunk->Free()) gone.erase(chunk);
  }
  // What has run out by `now` ends. Returns how many reservations and pins.
  ChunkStore::Maintenance Expire(MonotonicTime now) {
    ChunkStore::Maintenance ended;
    for (auto it = reservations.begin(); it != reservations.end();) {
      const auto here = it++;
      if (here->second.expiry > now) continue;
      Release(here->first);
      ++ended.expired_reservations;
    }
    for (const auto& [key, chunk] : stored) {
      if (!chunk->pin || *chunk->pin > now) continue;
      chunk->pin.reset();
      ++ended.expired_pins;
    }
    return ended;
  }

  // ---- Judgement of evictions

  // Empty if `victims`, all that went in order to free `shortage` bytes, may have gone; `before` is
  // when none had. `in_vain`: the space was not found after all.
  std::string JudgeVictims(const std::set<ModelRef>& victims, uint64_t shortage, bool in_vain,
                           MonotonicTime now) const {
    uint64_t freed = 0, largest = 0;
    for (const ModelRef& victim : victims) {
      if (victim->Held(now)) return "a chunk went that was held: " + victim->key.ToShortHex();
      freed += victim->arena_bytes;
      largest = std::max(largest, victim->arena_bytes);
    }
    if (!in_vain && !victims.empty() && shortage == 0) return "chunks went though there was room";
    if (!in_vain && !victims.empty() && freed - largest >= shortage) return "more went than needed";
    // What only a promise kept that is over comes back too, though not before others went.
    if (!in_vain && freed + Lapsed(now) < shortage) return "less went than needed";
    if (std::string wrong = JudgeLeaves(victims); !wrong.empty()) return wrong;
    return JudgeOrder(victims);
  }

 private:
  uint64_t Fraction(double fraction) const {
    return static_cast<uint64_t>(static_cast<double>(arena_bytes_) * fraction);
  }
  void Recount() {
    for (const auto& [key, chunk] : stored) chunk->reserved_until = {};
    for (const ModelRef& chunk : gone) chunk->reserved_until = {};
    for (const auto& [id, one] : reservations) {
      for (const ModelRef& chunk : one.chunks) {
        chunk->reserved_until = std::max(chunk->reserved_until, one.expiry);
      }
    }
    std::erase_if(gone, [](const ModelRef& chunk) { return chunk->Free(); });
  }

  // The chunks that no chunk of `left` names as its parent.
  static std::set<ChunkKey> Parents(const std::map<ChunkKey, ModelRef>& left,
                                    const std::set<ModelRef>& without) {
    std::set<ChunkKey> parents;
    for (const auto& [key, chunk] : left) {
      if (chunk->parent && !without.contains(chunk)) parents.insert(*chunk->parent);
    }
    return parents;
  }
  // A chunk goes before one that needs it only if nothing else is left: every leaf is held. (The
  // parent of the last victim may have become one.)
  std::string JudgeLeaves(const std::set<ModelRef>& victims) const {
    const std::set<ChunkKey> parents = Parents(stored, victims);
    std::set<ChunkKey> just_bared;
    bool orphans = false;
    for (const ModelRef& victim : victims) {
      orphans = orphans || parents.contains(victim->key);
      if (victim->parent) just_bared.insert(*victim->parent);
    }
    if (!orphans) return "";
    for (const auto& [key, chunk] : stored) {
      const bool leaf = !parents.contains(key) && !just_bared.contains(key);
      if (leaf && chunk->Free() && !victims.contains(chunk)) {
        return "a chunk went that others need, and a leaf stayed: " + key.ToShortHex();
      }
    }
    return "";
  }
  // Of the chunks that were leaves all along, the least recently used go first.
  std::string JudgeOrder(const std::set<ModelRef>& victims) const {
    const std::set<ChunkKey> parents = Parents(stored, {});
    uint64_t latest = 0;
    for (const ModelRef& victim : victims) {
      if (!parents.contains(victim->key)) latest = std::max(latest, victim->used_from);
    }
    for (const auto& [key, chunk] : stored) {
      if (victims.contains(chunk) || parents.contains(key) || !chunk->Free()) continue;
      if (chunk->used_to < latest) {
        return "a chunk went that was used after one that stayed: " + key.ToShortHex();
      }
    }
    return "";
  }

  const ChunkStoreOptions options_;
  const uint64_t arena_bytes_;
  std::map<ModelRef, OwnerId> owners_;
};

}  // namespace penstock

#endif  // PENSTOCK_TESTS_UNIT_STORE_MODEL_H_
