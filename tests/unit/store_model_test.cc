// ChunkStore against a model of its contract (store_model.h): a random walk through all that a
// client can ask for, with everything compared after every step (store_walk.h). GTEST_RANDOM_SEED=n
// walks another way; the seed and the step are part of every failure.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/unit/store_walk.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;

uint64_t Seed() {
  const auto wanted = GTEST_FLAG_GET(random_seed);
  return wanted > 0 ? static_cast<uint64_t>(wanted) : 20261130;
}

class Walk : private WalkState {
 public:
  using WalkState::WalkState;

  void Step() {
    test_.clock.Advance(kStep);
    SetNow();
    OneOf();
    CheckFigures();
    CheckOneReader();
    if (++steps_ % 64 == 0) CheckEveryKey();
  }

  // All that was promised ends; then a chunk of the whole arena must find room, again and again:
  // whatever the index, the policy or the allocator lost would be missing now.
  void EndEverything() {
    for (int owner = 0; owner < kOwners; ++owner) KillOwner(OwnerId(owner + 1));
    while (!readers_.empty()) EndRead(readers_.size() - 1);
    test_.clock.Advance(std::chrono::hours(1));
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(test_.Put(TestKey(1'000'000 + i), options_.max_chunk_bytes).ok());
    }
    const ChunkStoreStats s = test_.store->Stats();
    EXPECT_EQ(s.chunk_bytes, options_.max_chunk_bytes);
    EXPECT_EQ(s.free_bytes, 0u);
    test_.ExpectCountersAddUp();
    test_.store->Clear();
    test_.ExpectEmpty();
    EXPECT_EQ(test_.store->CheckInvariants(), "");
  }

  std::string Summary() const {
    const ChunkStoreStats s = test_.store->Stats();
    return fmt::format(
        "{} steps: {} begun, {} committed, {} evicted, {} dropped, {} replaced, {} refused for "
        "room ({} BUSY, {} ALL_PINNED), {} hits of {} finds, {} of {} keys matched, {} reserved",
        steps_, s.begun, s.committed, s.evicted_chunks, s.dropped_chunks, s.replaced_chunks,
        no_room_, At(s.refused, Code::kBusy), At(s.refused, Code::kAllPinned), s.hits, s.finds,
        s.matched_keys, s.match_keys, s.reservations_made);
  }
  uint64_t no_room() const { return no_room_; }
  ChunkStoreStats stats() const { return test_.store->Stats(); }

 private:
  void OneOf() {
    using Act = void (Walk::*)();
    static constexpr std::pair<int, Act> kActs[] = {
        {300, &Walk::DoPut},     {80, &Walk::DoBegin},    {70, &Walk::DoCommit},
        {20, &Walk::DoAbort},    {120, &Walk::DoFind},    {60, &Walk::DoFindMany},
        {80, &Walk::DoEndRead},  {90, &Walk::DoMatch},    {15, &Walk::DoRelease},
        {10, &Walk::DoRenew},    {4, &Walk::DoOwnerDies}, {60, &Walk::DoPin},
        {20, &Walk::DoUnpin},    {30, &Walk::DoTouch},    {20, &Walk::DoDrop},
        {1, &Walk::DoDropAll},   {20, &Walk::DoMaintain}, {3, &Walk::DoTimePasses},
        {5, &Walk::DoOpenAgain},
    };
    static constexpr int kTotal = [] {
      int total = 0;
      for (const auto& [weight, act] : kActs) total += weight;
      return total;
    }();
    auto left = static_cast<int>(Random(kTotal));
    for (const auto& [weight, act] : kActs) {
      if ((left -= weight) >= 0) continue;
      (this->*act)();
      return;
    }
  }

  // ---- Writers

  void DoPut() {
    if (Begin() && Chance(95)) Commit(writes_.size() - 1);
  }
  void DoBegin() {
    if (writes_.size() >= kMaxPending) return DoCommit();
    Begin();
  }
  void DoCommit() {
    if (!writes_.empty()) Commit(Random(writes_.size()));
  }
  void DoAbort() {
    if (!writes_.empty()) Abort(Random(writes_.size()));
  }

  NewChunk RandomChunk(size_t key, const ModelRef& chunk, std::vector<std::byte>& value) {
    chunk->key = keys_[key];
    chunk->ns = NamespaceFor(key);
    if (key % kChainLength > 0 && Chance(90)) chunk->parent = keys_[key - 1];
    if (Chance(2)) chunk->parent = keys_[RandomKey()];  // Itself, a cycle, another's: all of it.
    chunk->version = ++versions_;
    chunk->bytes = RandomBytes();
    chunk->arena_bytes = (chunk->bytes + options_.granule_bytes - 1) / options_.granule_bytes *
                         options_.granule_bytes;
    if (Chance(6)) chunk->flags = Chance(50) ? kManifestLossy : kManifestQueryDependent;
    chunk->tag = Chance(5) ? 1 : 0;
    value = MakeValue(chunk->key, chunk->version, chunk->bytes);
    NewChunk wanted;
    wanted.key = chunk->key;
    wanted.ns = chunk->ns;
    wanted.manifest = Manifest::Plain(chunk->bytes, ChunkChecksum(chunk->key, value));
    wanted.manifest.flags = chunk->flags;
    wanted.manifest.tag = chunk->tag;
    wanted.parent = chunk->parent;
    wanted.replace = Chance(15);
    wanted.owner = RandomOwner();
    return wanted;
  }

  // What Begin() must say, but for want of room.
  Code JudgeBegin(const NewChunk& wanted, uint64_t bytes) {
    if (wanted.parent == wanted.key) return Code::kInvalidArgument;
    if (bytes > options_.max_chunk_bytes) return Code::kTooLarge;
    if (const ModelRef there = model_.Find(wanted.key)) {
      if (there->ns != wanted.ns) return Code::kFormatMismatch;
      there->Used(tick_);  // Somebody computed it again: it is wanted.
      if (!wanted.replace) return Code::kAlreadyExists;
    }
    if (wanted.parent) {
      const ModelRef parent = model_.Find(*wanted.parent);
      if (parent && parent->ns == wanted.ns) parent->Used(tick_ + 1);
    }
    return model_.PendingFits(wanted.owner, bytes) ? Code::kOk : Code::kBusy;
  }

  bool Begin() {
    auto chunk = std::make_shared<ModelChunk>();
    std::vector<std::byte> value;
    NewChunk wanted = RandomChunk(KeyToStore(), chunk, value);
    const bool replace = wanted.replace;
    const OwnerId owner = wanted.owner;
    const Code expected = JudgeBegin(wanted, chunk->bytes);
    const uint64_t free = model_.FreeArena();
    const uint64_t shortage = chunk->arena_bytes > free ? chunk->arena_bytes - free : 0;

    auto begun = test_.store->Begin(std::move(wanted));
    ++want_.begun;
    if (expected != Code::kOk) {
      EXPECT_EQ(begun.status().code(), expected) << begun.status().ToString();
      ++(expected == Code::kAlreadyExists ? want_.exists : At(want_.refused, expected));
      EXPECT_TRUE(TakeVictims(0, false).empty());
      return false;
    }
    const std::set<ModelRef> victims = TakeVictims(shortage, !begun.ok());
    if (!begun.ok()) return NoRoom(*chunk, begun.status(), shortage), false;
    model_.Begin(chunk, owner);
    if (shortage > 0) EndWhatIsOver();  // As it may have done, or not.
    const bool spoilt = chunk->bytes > 0 && Chance(3);
    if (spoilt) value[Random(value.size())] ^= std::byte{1};
    Scatter(value, begun->pieces());
    writes_.push_back({chunk, std::move(begun).value(), replace, spoilt});
    return true;
  }

  // A refusal for want of room is only right if nothing is left that could go, and it must tell
  // whether waiting helps: what is being written or was unlinked comes back by itself.
  void NoRoom(const ModelChunk& chunk, const Status& status, uint64_t shortage) {
    ++no_room_;
    ++At(want_.refused, status.code());
    EXPECT_TRUE(shortage > 0 || pieces_matter_)
        << "refused with room for it: " << status.ToString();
    (void)model_.Expire(now_);  // It must have looked at the clock before it gave up.
    for (const auto& [key, left] : model_.stored) {
      EXPECT_TRUE(left->Held(now_)) << "refused, and this could have gone: " << key.ToShortHex();
    }
    const uint64_t coming = model_.Pending().arena_bytes + model_.Gone().arena_bytes;
    if (pieces_matter_ && model_.FreeArena() >= chunk.arena_bytes) return;
    const bool busy = coming > 0 && model_.FreeArena() + coming >= chunk.arena_bytes;
    EXPECT_EQ(status.code(), busy ? Code::kBusy : Code::kAllPinned)
        << status.ToString() << "; free " << model_.FreeArena() << ", coming " << coming;
  }

  // Finds out which chunks were evicted, judges that, and takes them out of the model.
  std::set<ModelRef> TakeVictims(uint64_t shortage, bool in_vain) {
    std::set<ModelRef> victims;
    const uint64_t evicted = test_.store->Stats().evicted_chunks - want_.evicted_chunks;
    if (evicted == 0 && shortage == 0 && !pieces_matter_) return victims;
    if (evicted > 0) {
      for (const auto& [key, chunk] : model_.stored) {
        if (!test_.store->Stat(key, Any(chunk->ns)).ok()) victims.insert(chunk);
      }
    }
    EXPECT_EQ(victims.size(), evicted) << "chunks are gone that nobody evicted";
    if (pieces_matter_) in_vain = true;  // More may go, for larger pieces.
    const std::string wrong = model_.JudgeVictims(victims, shortage, in_vain, now_);
    EXPECT_EQ(wrong, "") << victims.size() << " went for " << shortage << " bytes";
    // The eviction may have met these, and then it let them go by as just used.
    for (const auto& [key, chunk] : model_.stored) {
      if (chunk->readers > 0) chunk->used_to = LatestOfStep();
    }
    for (const ModelRef& victim : victims) {
      want_.evicted_bytes += victim->bytes;
      model_.Unlink(victim);
    }
    want_.evicted_chunks += victims.size();
    if (evicted > 0) EndWhatIsOver();  // As Stat() has, if it found anything.
    return victims;
  }

  void Commit(size_t at) {
    Write write = std::move(writes_[at]);
    writes_.erase(writes_.begin() + static_cast<ptrdiff_t>(at));
    const ModelRef chunk = write.chunk, there = model_.Find(chunk->key);
    Code expected = Code::kOk;
    if (write.spoilt) {
      expected = Code::kChecksumMismatch;
    } else if (there && there->ns != chunk->ns) {
      expected = Code::kFormatMismatch;
    } else if (there && !write.replace) {
      expected = Code::kAlreadyExists;
    }
    ASSERT_EQ(test_.store->Commit(std::move(write.pending)).code(), expected);
    model_.EndPending(chunk);
    if (expected != Code::kOk) {
      ++(expected == Code::kAlreadyExists ? want_.exists : At(want_.failed, expected));
      return;
    }
    chunk->Used(tick_);
    chunk->used_to = LatestOfStep();  // There may have been an eviction in it before.
    ++want_.committed;
    want_.committed_bytes += chunk->bytes;
    if (there) Replace(there, chunk);
    model_.Store(chunk);
  }
  void Replace(const ModelRef& old, const ModelRef& chunk) {
    (void)model_.Expire(now_);
    const std::optional<MonotonicTime> pin = old->pin;
    model_.Unlink(old);
    ++want_.replaced_chunks;
    want_.replaced_bytes += old->bytes;
    if (pin && model_.PinFits(chunk->bytes)) chunk->pin = pin;
  }
  void Abort(size_t at) {
    model_.EndPending(writes_[at].chunk);
    writes_.erase(writes_.begin() + static_cast<ptrdiff_t>(at));
    ++At(want_.failed, Code::kCancelled);
  }

  void DoOwnerDies() { KillOwner(RandomOwner()); }
  void KillOwner(OwnerId owner) {
    for (size_t i = writes_.size(); i-- > 0;) {
      if (model_.OwnerOf(writes_[i].chunk) == owner) Abort(i);
    }
    (void)test_.store->Maintain();
    (void)TakeVictims(HeadroomShortage(), true);
    (void)model_.Expire(now_);
    std::vector<ReservationId> ids;
    for (const auto& [id, one] : model_.reservations) {
      if (one.owner == owner) ids.push_back(id);
    }
    EXPECT_EQ(test_.store->ReleaseOwner(owner), ids.size());
    for (const ReservationId id : ids) model_.Release(id);
    std::erase_if(reservation_ids_,
                  [this](ReservationId id) { return !model_.reservations.contains(id); });
  }

  // ---- Readers

  void CountFind(Code code) {
    ++want_.finds;
    ++(code == Code::kOk ? want_.hits : code == Code::kMiss ? want_.misses : want_.mismatches);
  }
  void Keep(const ModelRef& chunk, ChunkRef ref) {
    model_.Read(chunk);
    readers_.push_back({chunk, std::move(ref)});
  }
  void EndRead(size_t at) {
    model_.EndRead(readers_[at].chunk);
    std::swap(readers_[at], readers_.back());
    readers_.pop_back();
  }

  void DoFind() {
    const size_t key = RandomKey();
    const ReadTerms terms = TermsFor(key);
    const Code expected = model_.Lookup(keys_[key], terms);
    auto found = test_.store->Find(keys_[key], terms);
    CountFind(expected);
    ASSERT_EQ(found.status().code(), expected);
    if (!found.ok()) return;
    const ModelRef chunk = model_.Find(keys_[key]);
    chunk->Used(tick_);
    CheckBytes(*chunk, *found);
    if (readers_.size() < kMaxReaders && Chance(40)) Keep(chunk, std::move(found).value());
  }
  void DoFindMany() {
    size_t first;
    const std::vector<ChunkKey> keys = RandomChain(first);
    const ReadTerms terms = TermsFor(first);
    auto found = test_.store->FindMany(keys, terms);
    ASSERT_EQ(found.size(), keys.size());
    bool refresh = true;
    for (size_t i = 0; i < keys.size(); ++i) {
      const Code expected = model_.Lookup(keys[i], terms);
      CountFind(expected);
      ASSERT_EQ(found[i].status().code(), expected);
      refresh = refresh && expected == Code::kOk;
      if (expected != Code::kOk) continue;
      if (refresh) model_.Find(keys[i])->Used(tick_ - i);
      CheckBytes(*model_.Find(keys[i]), *found[i]);
    }
  }
  void DoEndRead() {
    if (!readers_.empty()) EndRead(Random(readers_.size()));
  }
  void DoMatch() {
    std::vector<std::vector<ChunkKey>> keys;
    std::vector<KeyGroup> groups;
    size_t first, count = 0;
    const size_t wanted = 1 + Random(3);
    for (size_t g = 0; g < wanted; ++g) {
      keys.push_back(RandomChain(first));
      if (g == 0) count = keys[0].size();
      keys[g].assign(keys_.begin() + static_cast<ptrdiff_t>(first),
                     keys_.begin() + static_cast<ptrdiff_t>(first + count));
      const bool full = Chance(50);
      groups.push_back({TermsFor(first), {}, full ? 0 : static_cast<uint32_t>(1 + Random(4))});
    }
    for (size_t g = 0; g < wanted; ++g) groups[g].keys = keys[g];
    std::optional<ReserveRequest> reserve;
    if (model_.reservations.size() < kMaxReservations && Chance(60)) {
      reserve = ReserveRequest{RandomOwner(), RandomTtl()};
    }
    Match(groups, reserve);
  }
  void Match(std::span<const KeyGroup> groups, const std::optional<ReserveRequest>& reserve) {
    const uint32_t n = model_.LongestPrefix(groups);
    auto answer = test_.store->Match(groups, reserve);
    ASSERT_TRUE(answer.ok()) << answer.status().ToString();
    ASSERT_EQ(answer->matched, n);
    ++want_.matches;
    want_.match_keys += groups.size() * groups[0].keys.size();
    want_.matched_keys += groups.size() * n;
    std::vector<ModelRef> needed;
    for (size_t g = 0; g < groups.size(); ++g) {
      const uint32_t window = groups[g].window;
      const uint32_t first = window == 0 || window > n ? 0 : n - window;
      ASSERT_EQ(answer->groups[g].first, first);
      ASSERT_EQ(answer->groups[g].bytes.size(), n - first);
      for (uint32_t i = first; i < n; ++i) {
        const ModelRef chunk = model_.Find(groups[g].keys[i]);
        EXPECT_EQ(answer->groups[g].bytes[i - first], chunk->bytes);
        chunk->Used(tick_ - (i * groups.size() + g));
        needed.push_back(chunk);
      }
    }
    if (!reserve || n == 0) {
      EXPECT_EQ(answer->reservation, ReservationId::kNone);
      return;
    }
    CheckReservation(*answer, *reserve, std::move(needed));
  }
  void CheckReservation(const MatchResult& answer, const ReserveRequest& asked,
                        std::vector<ModelRef> needed) {
    (void)model_.Expire(now_);
    if (answer.reservation == ReservationId::kNone) {
      EXPECT_EQ(answer.reserve_status.code(), Code::kBusy);
      // A chunk in two groups is allowed to count twice.
      const bool twice = std::set<ModelRef>(needed.begin(), needed.end()).size() < needed.size();
      EXPECT_TRUE(twice || !model_.ReservationFits(needed)) << answer.reserve_status.ToString();
      ++want_.reservations_refused;
      return;
    }
    EXPECT_TRUE(model_.ReservationFits(needed));
    const Duration granted = std::min(asked.ttl, options_.max_reservation_ttl);
    EXPECT_EQ(answer.reservation_ttl, granted);
    model_.Reserve(answer.reservation, {asked.owner, now_ + granted, std::move(needed)});
    reservation_ids_.push_back(answer.reservation);
  }

  // ---- Retention

  // A reservation that was made some time, or one that never was; and its owner, or another.
  std::pair<ReservationId, OwnerId> RandomReservation() {
    if (reservation_ids_.size() > 64) reservation_ids_.erase(reservation_ids_.begin());
    if (reservation_ids_.empty() || Chance(5)) return {ReservationId{rng_()}, RandomOwner()};
    const ReservationId id = reservation_ids_[Random(reservation_ids_.size())];
    const auto it = model_.reservations.find(id);
    const bool own = it != model_.reservations.end() && Chance(90);
    return {id, own ? it->second.owner : RandomOwner()};
  }
  bool IsLive(ReservationId id, OwnerId owner) const {
    const auto it = model_.reservations.find(id);
    return it != model_.reservations.end() && it->second.owner == owner && it->second.expiry > now_;
  }
  void DoRelease() {
    (void)model_.Expire(now_);
    const auto [id, owner] = RandomReservation();
    const bool live = IsLive(id, owner);
    ASSERT_EQ(test_.store->ReleaseReservation(id, owner).code(), live ? Code::kOk : Code::kFenced);
    if (live) model_.Release(id);
  }
  void DoRenew() {
    (void)model_.Expire(now_);
    const auto [id, owner] = RandomReservation();
    const bool live = IsLive(id, owner);
    const Duration ttl = RandomTtl();
    ASSERT_EQ(test_.store->RenewReservation(id, owner, ttl).code(),
              live ? Code::kOk : Code::kFenced);
    if (live) model_.Renew(id, now_ + std::min(ttl, options_.max_reservation_ttl));
  }
  void DoPin() {
    const size_t key = RandomKey();
    const ReadTerms terms = TermsFor(key);
    const Duration ttl = RandomTtl();
    (void)model_.Expire(now_);
    Code expected = model_.Lookup(keys_[key], terms);
    const ModelRef chunk = model_.Find(keys_[key]);
    if (expected == Code::kOk && !chunk->pin && !model_.PinFits(chunk->bytes)) {
      expected = Code::kBusy;
    }
    ASSERT_EQ(test_.store->Pin(keys_[key], terms, ttl).code(), expected);
    if (expected == Code::kOk) chunk->pin = now_ + std::min(ttl, options_.max_pin_ttl);
  }
  void DoUnpin() {
    const size_t key = RandomKey();
    const ReadTerms terms = TermsFor(key);
    Code expected = model_.Lookup(keys_[key], terms);
    if (expected == Code::kOk) {
      (void)model_.Expire(now_);
      if (!model_.Find(keys_[key])->pin) expected = Code::kFenced;
    }
    ASSERT_EQ(test_.store->Unpin(keys_[key], terms).code(), expected);
    if (expected == Code::kOk) model_.Find(keys_[key])->pin.reset();
  }
  void DoTouch() {
    size_t first;
    const std::vector<ChunkKey> keys = RandomChain(first);
    const ReadTerms terms = TermsFor(first);
    size_t n = 0;
    for (; n < keys.size() && model_.Lookup(keys[n], terms) == Code::kOk; ++n) {
      model_.Find(keys[n])->Used(tick_ - n);
    }
    ASSERT_EQ(test_.store->Touch(keys, terms), n);
  }
  void DropFromModel(const ModelRef& chunk) {
    ++want_.dropped_chunks;
    want_.dropped_bytes += chunk->bytes;
    model_.Unlink(chunk);
  }
  void DoDrop() {
    const size_t key = RandomKey();
    const NamespaceId ns = NamespaceFor(key);
    const ModelRef chunk = model_.Find(keys_[key]);
    const Code expected = chunk == nullptr  ? Code::kMiss
                          : chunk->ns != ns ? Code::kFormatMismatch
                                            : Code::kOk;
    ASSERT_EQ(test_.store->Drop(keys_[key], ns).code(), expected);
    if (expected == Code::kOk) DropFromModel(chunk);
  }
  void DoDropAll() {
    const bool clear = Chance(30);
    const NamespaceId ns = namespaces_[Random(kNamespaces)];
    std::vector<ModelRef> dropped;
    for (const auto& [key, chunk] : model_.stored) {
      if (clear || chunk->ns == ns) dropped.push_back(chunk);
    }
    ASSERT_EQ(clear ? test_.store->Clear() : test_.store->DropNamespace(ns), dropped.size());
    for (const ModelRef& chunk : dropped) DropFromModel(chunk);
    while (clear && !model_.reservations.empty()) {
      model_.Release(model_.reservations.begin()->first);
    }
  }
  void DoMaintain() {
    (void)model_.Expire(now_);
    const uint64_t shortage = HeadroomShortage();
    const ChunkStore::Maintenance done = test_.store->Maintain();
    uint64_t could_go = 0;
    for (const auto& [key, chunk] : model_.stored) {
      could_go += chunk->Held(now_) ? 0 : chunk->arena_bytes;
    }
    EXPECT_EQ(done.evicted, TakeVictims(shortage, could_go < shortage).size());
    EXPECT_FALSE(done.more);
  }
  void DoTimePasses() {
    test_.clock.Advance(milliseconds(Random(300)));
    SetNow();
  }
  void DoOpenAgain() {
    const size_t which = Random(kNamespaces);
    ASSERT_EQ(test_.OpenNamespace("walk" + std::to_string(which)), namespaces_[which]);
  }
};

void WalkFor(int steps, uint32_t max_extents) {
  const uint64_t seed = Seed();
  Walk walk(seed, max_extents);
  for (int step = 0; step < steps; ++step) {
    SCOPED_TRACE(fmt::format("GTEST_RANDOM_SEED={}, step {}", seed, step));
    walk.Step();
    if (testing::Test::HasFailure()) return;
  }
  std::printf("seed %llu, %s\n", static_cast<unsigned long long>(seed), walk.Summary().c_str());
  // The walk came to the places it is for.
  const ChunkStoreStats s = walk.stats();
  EXPECT_GT(s.evicted_chunks, static_cast<uint64_t>(steps) / 100);
  EXPECT_GT(s.hits, static_cast<uint64_t>(steps) / 100);
  EXPECT_GT(s.reservations_made, static_cast<uint64_t>(steps) / 1000);
  EXPECT_GT(walk.no_room(), 0u);
  walk.EndEverything();
}

TEST(StoreModel, EveryStepOfARandomWalkIsAsPromised) { WalkFor(40'000, 1024); }
// Splitting is so limited that what is free is often in too many pieces. (Which pieces they are
// depends on the order in which a hash table gives chunks back, so this walk, unlike the other, is
// not the same every time.)
TEST(StoreModel, SoItIsWhereMemoryMayNotBeSplitMuch) { WalkFor(10'000, 3); }

}  // namespace
}  // namespace penstock
