// What a random walk over ChunkStore knows (store_model_test.cc takes the steps): the store, the
// model, what the walk holds, how it draws, and what must be true after every step.

#ifndef PENSTOCK_TESTS_UNIT_STORE_WALK_H_
#define PENSTOCK_TESTS_UNIT_STORE_WALK_H_

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/store_model.h"
#include "tests/unit/store_testing.h"

namespace penstock {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kArena = 256 * kKiB;
inline constexpr int kChains = 12, kChainLength = 10, kNamespaces = 3, kOwners = 4;
inline constexpr size_t kMaxPending = 12, kMaxReaders = 16, kMaxReservations = 24;
// Between two steps. Moments of use within one step are counted up from its beginning.
inline constexpr Duration kStep = std::chrono::milliseconds(1);
inline constexpr uint64_t kStepTicks = 1'000'000;

inline ChunkStoreOptions WalkOptions(uint32_t max_extents) {
  ChunkStoreOptions options = TestStore::Options(kArena);
  options.max_chunk_bytes = kArena;
  options.max_extents = max_extents;
  options.headroom = 0.03;
  options.max_pending = 0.6;
  options.max_pending_per_owner = 0.5;
  options.max_reserved = 0.6;
  options.max_pinned = 0.5;
  options.max_reservation_ttl = std::chrono::milliseconds(600);
  options.max_pin_ttl = std::chrono::milliseconds(800);
  options.index_shards = 4;
  return options;
}

class WalkState {
 public:
  // `pieces_matter`: an allocation may also fail because what is free lies in too many pieces.
  WalkState(uint64_t seed, uint32_t max_extents)
      : pieces_matter_(max_extents < kArena / 256),
        rng_(seed),
        options_(WalkOptions(max_extents)),
        test_(options_),
        model_(options_, test_.store->Stats().arena_bytes) {
    start_ = test_.clock.Now();
    for (int i = 0; i < kNamespaces; ++i) {
      namespaces_.push_back(test_.OpenNamespace("walk" + std::to_string(i)));
    }
    for (uint64_t i = 0; i < kChains * kChainLength; ++i) keys_.push_back(TestKey(i));
  }

 protected:
  struct Write {
    ModelRef chunk;
    PendingChunk pending;
    bool replace, spoilt;
  };
  struct Reader {
    ModelRef chunk;
    ChunkRef ref;
  };

  static uint64_t At(const std::array<uint64_t, kCodeCount>& counts, Code code) {
    return counts[static_cast<size_t>(code)];
  }
  static uint64_t& At(std::array<uint64_t, kCodeCount>& counts, Code code) {
    return counts[static_cast<size_t>(code)];
  }
  uint64_t LatestOfStep() const { return tick_ + kStepTicks - 1; }
  static ReadTerms Any(NamespaceId ns) {
    return {.ns = ns, .want_exact = false, .tag = std::nullopt};
  }

  uint64_t Random(uint64_t below) { return rng_() % below; }
  bool Chance(uint64_t percent) { return Random(100) < percent; }
  size_t RandomKey() { return Random(keys_.size()); }
  OwnerId RandomOwner() { return OwnerId(1 + Random(kOwners)); }
  NamespaceId HomeOf(size_t key) const { return namespaces_[key / kChainLength % kNamespaces]; }
  // Now and then somebody asks for what is not his.
  NamespaceId NamespaceFor(size_t key) {
    return Chance(3) ? namespaces_[Random(kNamespaces)] : HomeOf(key);
  }
  ReadTerms TermsFor(size_t key) {
    return {.ns = NamespaceFor(key),
            .want_exact = Chance(80),
            .tag = Chance(50) ? std::optional<uint64_t>(Random(2)) : std::nullopt};
  }
  std::vector<ChunkKey> RandomChain(size_t& first) {
    first = Random(kChains) * kChainLength;
    const size_t length = Random(kChainLength + 1);
    return {keys_.begin() + static_cast<ptrdiff_t>(first),
            keys_.begin() + static_cast<ptrdiff_t>(first + length)};
  }
  // Mostly the next one that a chain lacks, as an engine does it.
  size_t KeyToStore() {
    size_t key = RandomKey();
    if (Chance(30)) return key;
    for (key -= key % kChainLength; model_.Find(keys_[key]) != nullptr; ++key) {
      if (key % kChainLength + 1 == kChainLength) break;
    }
    return key;
  }
  uint64_t RandomBytes() {
    switch (Random(20)) {
      case 0:
        return 0;
      case 1:
        return 1 + Random(300);
      case 2:
        return 16 * kKiB + Random(16 * kKiB);
      case 3:
        return 32 * kKiB + Random(Chance(90) ? 120 * kKiB : kArena);  // Some are too large.
      default:
        return 1 + Random(4 * kKiB);
    }
  }
  Duration RandomTtl() { return std::chrono::milliseconds(1 + Random(1000)); }

  void SetNow() {
    now_ = test_.clock.Now();
    tick_ = static_cast<uint64_t>((now_ - start_).count());
  }
  void EndWhatIsOver() {
    EXPECT_EQ(test_.store->ReleaseReservation(ReservationId::kNone, OwnerId::kDaemon).code(),
              Code::kFenced);
    (void)model_.Expire(now_);
  }

  uint64_t HeadroomShortage() const {
    const uint64_t free = model_.FreeArena();
    return free < model_.Headroom() ? model_.Headroom() - free : 0;
  }
  // ---- What must hold after every step

  void CheckFigures() {
    test_.ExpectCountersAddUp();
    const ChunkStoreStats s = test_.store->Stats();
    EXPECT_EQ(s.begun, want_.begun);
    EXPECT_EQ(s.committed, want_.committed);
    EXPECT_EQ(s.committed_bytes, want_.committed_bytes);
    EXPECT_EQ(s.exists, want_.exists);
    EXPECT_EQ(s.refused, want_.refused);
    EXPECT_EQ(s.failed, want_.failed);
    EXPECT_EQ(s.hits, want_.hits);
    EXPECT_EQ(s.misses, want_.misses);
    EXPECT_EQ(s.mismatches, want_.mismatches);
    EXPECT_EQ(s.matches, want_.matches);
    EXPECT_EQ(s.match_keys, want_.match_keys);
    EXPECT_EQ(s.matched_keys, want_.matched_keys);
    EXPECT_EQ(s.evicted_chunks, want_.evicted_chunks);
    EXPECT_EQ(s.evicted_bytes, want_.evicted_bytes);
    EXPECT_EQ(s.dropped_bytes, want_.dropped_bytes);
    EXPECT_EQ(s.replaced_bytes, want_.replaced_bytes);
    EXPECT_EQ(s.reservations_refused, want_.reservations_refused);
    const ModelSums stored = model_.Stored(), pending = model_.Pending();
    EXPECT_EQ(s.chunks, stored.chunks);
    EXPECT_EQ(s.chunk_bytes, stored.bytes);
    EXPECT_EQ(s.pending_chunks, pending.chunks);
    EXPECT_EQ(s.pending_bytes, pending.bytes);
    CheckHeld(s);
  }
  // A promise that has run out ends when somebody needs it to, so until then it may count or not.
  void CheckHeld(const ChunkStoreStats& s) {
    const bool in_doubt = HasExpired();
    const auto expect = [in_doubt](uint64_t is, uint64_t most, const char* what) {
      EXPECT_LE(is, most) << what;
      EXPECT_TRUE(in_doubt || is == most) << what << ": " << is << ", not " << most;
    };
    const ModelSums gone = model_.Gone(), reserved = model_.Reserved(), pinned = model_.Pinned();
    expect(s.detached_chunks, gone.chunks, "detached chunks");
    expect(s.detached_bytes, gone.bytes, "detached bytes");
    expect(s.reservations, model_.reservations.size(), "reservations");
    expect(s.reserved_chunks, reserved.chunks, "reserved chunks");
    expect(s.reserved_bytes, reserved.bytes, "reserved bytes");
    expect(s.pinned_chunks, pinned.chunks, "pinned chunks");
    expect(s.pinned_bytes, pinned.bytes, "pinned bytes");
    expect(s.used_bytes, model_.UsedArena(), "used bytes");
  }
  bool HasExpired() const {
    for (const auto& [id, one] : model_.reservations) {
      if (one.expiry <= now_) return true;
    }
    for (const auto& [key, chunk] : model_.stored) {
      if (chunk->pin && *chunk->pin <= now_) return true;
    }
    return false;
  }

  void CheckEveryKey() {
    ASSERT_EQ(test_.store->CheckInvariants(), "");
    EndWhatIsOver();  // As Stat() does.
    for (size_t key = 0; key < keys_.size(); ++key) {
      const ModelRef chunk = model_.Find(keys_[key]);
      const auto info = test_.store->Stat(keys_[key], Any(chunk ? chunk->ns : HomeOf(key)));
      ASSERT_EQ(info.ok(), chunk != nullptr) << info.status().ToString();
      if (chunk != nullptr) CheckInfo(*info, *chunk);
    }
  }
  void CheckInfo(const ChunkInfo& info, const ModelChunk& chunk) const {
    EXPECT_EQ(info.ns, chunk.ns);
    EXPECT_EQ(info.parent, chunk.parent);
    EXPECT_EQ(info.bytes, chunk.bytes);
    EXPECT_EQ(info.flags, chunk.flags);
    EXPECT_EQ(info.tag, chunk.tag);
    EXPECT_EQ(info.readers, chunk.readers + chunk.reservations);
    EXPECT_EQ(info.children, model_.Children(chunk.key));
    EXPECT_EQ(info.pinned, chunk.pin.has_value());
    if (chunk.pin) {
      EXPECT_EQ(info.pin_left, *chunk.pin - now_);
    }
    const auto idle = static_cast<uint64_t>(info.idle.count());
    EXPECT_LE(idle, tick_ - std::min(tick_, chunk.used_from));
    EXPECT_GE(idle, tick_ - std::min(tick_, chunk.used_to));
  }

  void CheckBytes(const ModelChunk& chunk, const ChunkRef& ref) {
    EXPECT_EQ(ref.key(), chunk.key);
    EXPECT_EQ(ref.bytes(), chunk.bytes);
    EXPECT_EQ(ref.manifest().flags, chunk.flags);
    EXPECT_TRUE(Gather(ref.pieces()) == MakeValue(chunk.key, chunk.version, chunk.bytes))
        << "wrong bytes under " << chunk.key.ToShortHex() << " version " << chunk.version;
  }
  // Whoever reads goes on reading the same bytes, whatever has happened to the key.
  void CheckOneReader() {
    if (readers_.empty()) return;
    const Reader& reader = readers_[Random(readers_.size())];
    CheckBytes(*reader.chunk, reader.ref);
  }

  const bool pieces_matter_;
  std::mt19937_64 rng_;
  const ChunkStoreOptions options_;
  TestStore test_;
  StoreModel model_;
  MonotonicTime start_{}, now_{};
  uint64_t tick_ = 0;  // Nanoseconds since the store began.
  std::vector<NamespaceId> namespaces_;
  std::vector<ChunkKey> keys_;
  std::vector<Write> writes_;  // Before the store goes, as must readers.
  std::vector<Reader> readers_;
  std::vector<ReservationId> reservation_ids_;
  ChunkStoreStats want_;  // The counters.
  uint64_t versions_ = 0, steps_ = 0, no_room_ = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_TESTS_UNIT_STORE_WALK_H_
