// Faults that break caches of this kind in production, replayed against the store.
// tests/faults/README.md lists the kinds and what holds each.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <set>
#include <thread>
#include <tuple>

#include "server/daemon/store/chunk_store.h"
#include "tests/unit/store_testing.h"

namespace penstock {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

std::vector<ChunkKey> KeyRange(uint64_t from, uint64_t to) {
  std::vector<ChunkKey> keys;
  for (uint64_t i = from; i < to; ++i) keys.push_back(TestKey(i));
  return keys;
}

// ---- A slow reader

TEST(StoreFaults, SlowReaderNeverSeesReusedBytes) {
  constexpr uint64_t kChunk = 64 * kKiB;
  TestStore t(8 * kChunk);
  for (uint64_t round = 0; round < 200; ++round) {
    const ChunkKey key = TestKey(1'000'000 + round);
    ASSERT_TRUE(t.Put(key, kChunk, {.version = round}).ok());
    const auto reader = t.store->Find(key, t.terms);
    ASSERT_TRUE(reader.ok());
    const std::vector<iovec> pieces((*reader).pieces().begin(), (*reader).pieces().end());
    const auto slow_half = VersionOf(*reader);
    // The key goes by every way there is while the reader is in the middle.
    if (round % 3 == 1) {
      ASSERT_TRUE(t.store->Drop(key, t.ns).ok());
    }
    if (round % 3 == 2) {
      ASSERT_TRUE(t.Put(key, kChunk, {.version = 9, .replace = true}).ok());
    }
    for (uint64_t i = 0; i < 100; ++i) {
      ASSERT_TRUE(t.Put(TestKey(round * 100 + i), kChunk).ok());
    }
    t.clock.Advance(hours(1));  // No time limits a read.
    t.store->Maintain();
    ASSERT_EQ(slow_half, round);
    ASSERT_EQ(VersionOf(key, Gather(pieces)), round);
  }
  EXPECT_GT(t.store->Stats().evicted_chunks, 19'000u);
  t.ExpectCountersAddUp();
}

TEST(StoreFaults, LastChunkOfALongBatchIsAsSafeAsTheFirst) {
  TestStore t(96 * 4 * kKiB);
  const std::vector<ChunkKey> keys = KeyRange(0, 64);
  for (const ChunkKey& key : keys) ASSERT_TRUE(t.Put(key, 4 * kKiB, {.version = 5}).ok());
  auto batch = t.store->FindMany(keys, t.terms);
  for (size_t i = 0; i < batch.size(); ++i) {
    for (uint64_t n = 0; n < 40; ++n) ASSERT_TRUE(t.Put(TestKey(1000 + i * 40 + n), 4 * kKiB).ok());
    t.clock.Advance(minutes(10));
    t.store->Maintain();
    ASSERT_TRUE(batch[i].ok());
    ASSERT_EQ(VersionOf(*batch[i]), 5u);
    batch[i] = Status(Code::kMiss);  // Done with this one.
  }
}

// ---- Writers of one key

void RaceOnOneKey(uint64_t bytes) {
  TestStore t(64 * kMiB);
  const ChunkKey key = TestKey(1);
  constexpr int kWriters = 8, kReaders = 4, kRounds = 40;
  std::atomic<int> writing{kWriters};
  std::atomic<uint64_t> reads{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int w = 0; w < kWriters; ++w) {
    threads.emplace_back([&, w] {
      for (uint64_t i = 0; i < kRounds; ++i) {
        const Status put = t.Put(key, bytes, {.version = w * 1'000'000 + i, .replace = i % 2 == 0});
        if (!put.ok() && put.code() != Code::kAlreadyExists && put.code() != Code::kBusy) ++wrong;
        if (i % 8 == 7) (void)t.store->Drop(key, t.ns);
      }
      --writing;
    });
  }
  for (int r = 0; r < kReaders; ++r) {
    threads.emplace_back([&] {
      while (writing > 0) {
        const bool exists = t.store->Stat(key, t.terms).ok();
        const auto found = t.store->Find(key, t.terms);
        if (!found.ok()) continue;
        if ((*found).bytes() != bytes || !VersionOf(*found)) ++wrong;
        reads += exists ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  ASSERT_TRUE(t.Put(key, bytes, {.replace = true}).ok());
  EXPECT_TRUE(t.Get(key).has_value());
  EXPECT_TRUE(t.store->Drop(key, t.ns).ok());  // One is enough.
  EXPECT_FALSE(t.Has(key));
  t.ExpectCountersAddUp();
  t.ExpectEmpty();
}

TEST(StoreFaults, RacingWritersOfAnEmptyValue) { RaceOnOneKey(0); }
TEST(StoreFaults, RacingWritersOfOneByte) { RaceOnOneKey(1); }
TEST(StoreFaults, RacingWritersOfAPage) { RaceOnOneKey(4 * kKiB); }
TEST(StoreFaults, RacingWritersOfALargeValue) { RaceOnOneKey(kMiB); }

// Lengths around the limits of 31 and 32 bits. The arena is sparse: only the edges are touched.
TEST(StoreFaults, LengthsBeyond32BitsAreKeptWhole) {
  ChunkStoreOptions options = TestStore::Options(uint64_t{10} << 30);
  options.verify_on_commit = false;
  TestStore t(options);
  const std::vector<uint64_t> lengths = {(1ull << 31) - 1, (1ull << 31) + 1, (1ull << 32) + 17};
  for (const uint64_t length : lengths) {
    const ChunkKey key = TestKey(length);
    NewChunk chunk;
    chunk.key = key;
    chunk.ns = t.ns;
    chunk.manifest = Manifest::Plain(length, 0);
    auto pending = t.store->Begin(std::move(chunk));
    ASSERT_TRUE(pending.ok()) << pending.status().ToString();
    const std::vector<uint64_t> edges = {0, (1ull << 31) - 2, length - 1};
    for (const uint64_t at : edges) {
      absl::InlinedVector<iovec, 4> out;
      ASSERT_TRUE(AppendSlice(pending->pieces(), at, 1, out));
      *static_cast<uint8_t*>(out[0].iov_base) = static_cast<uint8_t>(at * 7 + 1);
    }
    ASSERT_TRUE(t.store->Commit(std::move(pending).value()).ok());
    const auto found = t.store->Find(key, t.terms);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ((*found).bytes(), length);
    uint64_t sum = 0;
    for (const iovec& piece : (*found).pieces()) sum += piece.iov_len;
    EXPECT_EQ(sum, length);
    for (const uint64_t at : edges) {
      absl::InlinedVector<iovec, 4> out;
      ASSERT_TRUE(AppendSlice((*found).pieces(), at, 1, out));
      EXPECT_EQ(*static_cast<uint8_t*>(out[0].iov_base), static_cast<uint8_t>(at * 7 + 1));
    }
  }
  EXPECT_EQ(t.store->Stats().chunk_bytes, lengths[0] + lengths[1] + lengths[2]);
}

// ---- Writers that die

TEST(StoreFaults, WriterThatDiesHalfWayLeavesTheKeyFree) {
  constexpr uint64_t kChunk = 64 * kKiB;
  TestStore t(8 * kChunk);
  for (uint64_t i = 0; i < 500; ++i) {
    auto dead = t.Begin(TestKey(i), kChunk, {.version = 1});
    ASSERT_TRUE(dead.ok());
    dead = Status(Code::kDisconnected);  // The session ends: its chunks go with it.
    ASSERT_EQ(t.store->Stats().pending_bytes, 0u);
    ASSERT_EQ(t.store->Drop(TestKey(i), t.ns).code(), Code::kMiss);
    ASSERT_TRUE(t.Put(TestKey(i), kChunk, {.version = 2}).ok());
    ASSERT_EQ(t.Get(TestKey(i)), 2u);
    ASSERT_TRUE(t.store->Drop(TestKey(i), t.ns).ok());
  }
  EXPECT_EQ(t.store->Stats().failed[static_cast<size_t>(Code::kCancelled)], 500u);
  t.ExpectEmpty();
  t.ExpectCountersAddUp();
}

TEST(StoreFaults, FrozenWriterBlocksNobodyAndItsLateCommitChangesNothing) {
  constexpr uint64_t kChunk = 16 * kKiB;
  TestStore t(32 * kChunk);
  for (uint64_t i = 0; i < 500; ++i) {
    const ChunkKey key = TestKey(i);
    auto frozen = t.Begin(key, kChunk, {.version = 1});
    ASSERT_TRUE(frozen.ok());
    ASSERT_TRUE(t.Put(key, kChunk, {.version = 2}).ok());
    ASSERT_TRUE(t.Put(TestKey(10'000 + i), kChunk, {.version = 3}).ok());
    // It wakes up: its space is still its own, so its writes hit nobody.
    Scatter(MakeValue(key, 1, kChunk), frozen->pieces());
    ASSERT_EQ(t.store->Commit(std::move(frozen).value()).code(), Code::kAlreadyExists);
    ASSERT_EQ(t.Get(key), 2u);
    ASSERT_EQ(t.Get(TestKey(10'000 + i)), 3u);
  }
  t.store->Clear();
  t.ExpectEmpty();
}

// ---- Probes and pressure

// Runs `probe` in 8 threads while twice the capacity of new chunks is stored.
void PressUnderProbes(const std::function<void(TestStore&, std::mt19937_64&)>& probe) {
  constexpr uint64_t kChunk = 16 * kKiB, kCapacity = 512;
  TestStore t(kCapacity * kChunk);
  for (uint64_t i = 0; i < kCapacity; ++i) ASSERT_TRUE(t.Put(TestKey(i), kChunk).ok());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int n = 0; n < 8; ++n) {
    threads.emplace_back([&, n] {
      std::mt19937_64 rng(n);
      while (!stop) probe(t, rng);
    });
  }
  uint64_t stored = 0;
  for (uint64_t i = kCapacity; i < 3 * kCapacity; ++i) {
    stored += t.Put(TestKey(i), kChunk).ok() ? 1 : 0;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(stored, 2 * kCapacity * 99 / 100);
  EXPECT_GE(t.store->Stats().evicted_chunks, 2 * kCapacity * 99 / 100);
  t.ExpectCountersAddUp();
}

TEST(StoreFaults, ProbesOverAllKeysKeepNothingFromEviction) {
  const std::vector<ChunkKey> all = KeyRange(0, 3 * 512);
  PressUnderProbes([&all](TestStore& t, std::mt19937_64&) {
    // One by one and as a sliding window: each way reaches all keys, whatever is missing.
    for (size_t i = 0; i < all.size(); ++i) {
      const KeyGroup one{t.terms, std::span(all).subspan(i, 1), 0};
      ASSERT_TRUE(t.store->Match({&one, 1}).ok());
    }
    const KeyGroup window{t.terms, all, 400};
    ASSERT_TRUE(t.store->Match({&window, 1}).ok());
  });
}

TEST(StoreFaults, ReadersOfAllKeysKeepNothingFromEviction) {
  PressUnderProbes([](TestStore& t, std::mt19937_64& rng) {
    const auto found = t.store->Find(TestKey(rng() % (3 * 512)), t.terms);
    if (found.ok()) {
      ASSERT_TRUE(VersionOf(*found).has_value());
    }
  });
}

TEST(StoreFaults, WhenAllIsReallyHeldTheErrorIsItsOwn) {
  constexpr uint64_t kChunk = 16 * kKiB;
  TestStore t(64 * kChunk);
  const std::vector<ChunkKey> keys = KeyRange(0, 64);
  for (const ChunkKey& key : keys) ASSERT_TRUE(t.Put(key, kChunk).ok());
  auto held = t.store->FindMany(keys, t.terms);
  EXPECT_EQ(t.Put(TestKey(100), kChunk).code(), Code::kAllPinned);
  EXPECT_EQ(t.store->Stats().refused[static_cast<size_t>(Code::kAllPinned)], 1u);
  held.clear();
  EXPECT_TRUE(t.Put(TestKey(100), kChunk).ok());
}

TEST(StoreFaults, NothingStaysPinnedHoweverACallerLeaves) {
  constexpr uint64_t kChunk = 4 * kKiB, kKeys = 64;
  TestStore t(kKeys * kChunk);
  for (uint64_t i = 0; i < kKeys; ++i) {
    ASSERT_TRUE(t.Put(TestKey(i), kChunk, {.parent = TestKey(i - 1)}).ok());
  }
  std::mt19937_64 rng(42);
  for (int round = 0; round < 100'000; ++round) {
    const OwnerId owner{1 + rng() % 5};
    std::vector<ChunkKey> keys = KeyRange(0, 1 + rng() % 16);
    if (rng() % 4 == 0) keys.push_back(TestKey(999));  // A batch with a miss.
    const KeyGroup group{t.terms, keys, static_cast<uint32_t>(rng() % 3)};
    const auto match = t.store->Match({&group, 1}, ReserveRequest{owner, seconds(30)});
    ASSERT_TRUE(match.ok());
    const ReservationId id = (*match).reservation;
    switch (rng() % 6) {
      case 0:  // Fetches, releases.
        (void)t.store->FindMany(std::span(keys).first((*match).matched), t.terms);
        (void)t.store->ReleaseReservation(id, owner);
        break;
      case 1:  // Changes its mind.
        break;
      case 2:  // Aborts, twice.
        (void)t.store->ReleaseReservation(id, owner);
        ASSERT_EQ(t.store->ReleaseReservation(id, owner).code(), Code::kFenced);
        break;
      case 3:  // Dies.
        t.store->ReleaseOwner(owner);
        break;
      case 4:  // Fetches the same key twice and is slow to let go.
        for (int i = 0; i < 2; ++i) (void)t.store->Find(keys[0], t.terms);
        t.clock.Advance(milliseconds(rng() % 100));
        break;
      default:  // Its time runs out.
        t.clock.Advance(seconds(1));
        t.store->Maintain();
        break;
    }
    const ChunkStoreStats stats = t.store->Stats();
    ASSERT_LE(stats.reserved_chunks, kKeys);  // Never negative, never double.
    ASSERT_EQ(stats.reserved_bytes, stats.reserved_chunks * kChunk);
  }
  t.clock.Advance(minutes(5));
  t.store->Maintain();
  const ChunkStoreStats stats = t.store->Stats();
  EXPECT_EQ(stats.reservations, 0u);
  EXPECT_EQ(stats.reserved_chunks, 0u);
  EXPECT_EQ(stats.reserved_bytes, 0u);
  for (uint64_t i = 1000; i < 1000 + kKeys; ++i) ASSERT_TRUE(t.Put(TestKey(i), kChunk).ok());
  EXPECT_EQ(t.store->Stats().evicted_chunks, kKeys);
  t.ExpectCountersAddUp();
}

// ---- Prefixes

struct Sequences {
  static constexpr uint64_t kLength = 128, kChunk = 4 * kKiB;
  static ChunkKey Key(uint64_t sequence, uint64_t i) { return TestKey(sequence * 1000 + i); }
  static Status Put(TestStore& t, uint64_t sequence, uint64_t i, bool with_parent) {
    PutOptions put;
    if (with_parent && i > 0) put.parent = Key(sequence, i - 1);
    return t.Put(Key(sequence, i), kChunk, put);
  }
  static std::vector<ChunkKey> Keys(uint64_t sequence) {
    std::vector<ChunkKey> keys;
    for (uint64_t i = 0; i < kLength; ++i) keys.push_back(Key(sequence, i));
    return keys;
  }
};

// Of the chunks of a sequence; in turns: ten sequences grow at a time, as they do in an engine.
enum class Order { kHeadFirst, kTailFirst, kInTurns };

// 100 sequences fill the store; they are looked up; then twice the capacity of others arrives in
// the same order, while some of the first are looked up again and again.
double ReachableShare(Order order, bool with_parents) {
  constexpr uint64_t kSequences = 100;
  TestStore t(kSequences * Sequences::kLength * Sequences::kChunk);
  std::mt19937_64 rng(50);
  const auto insert = [&](uint64_t from, uint64_t to, const std::function<void()>& meanwhile) {
    std::vector<std::pair<uint64_t, uint64_t>> plan;
    for (uint64_t s = from; s < to; ++s) {
      for (uint64_t i = 0; i < Sequences::kLength; ++i) plan.emplace_back(s, i);
    }
    const auto rank = [order](const std::pair<uint64_t, uint64_t>& p) {
      const auto [sequence, i] = p;
      return order == Order::kTailFirst ? std::tuple(sequence, Sequences::kLength - i, sequence)
             : order == Order::kInTurns ? std::tuple(sequence / 10, i, sequence)
                                        : std::tuple(sequence, i, sequence);
    };
    std::sort(plan.begin(), plan.end(),
              [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
    for (size_t n = 0; n < plan.size(); ++n) {
      EXPECT_TRUE(Sequences::Put(t, plan[n].first, plan[n].second, with_parents).ok());
      if (n % 500 == 0) meanwhile();
    }
  };
  insert(0, kSequences, [] {});
  for (uint64_t s = 0; s < kSequences; ++s) t.Match(Sequences::Keys(s));
  insert(kSequences, 3 * kSequences, [&] { t.Match(Sequences::Keys(rng() % 20)); });

  uint64_t reachable = 0;
  for (uint64_t s = 0; s < 3 * kSequences; ++s) reachable += t.Match(Sequences::Keys(s));
  const uint64_t resident = t.store->Stats().chunks;
  EXPECT_EQ(resident, kSequences * Sequences::kLength);
  EXPECT_GE(t.store->Stats().evicted_chunks, kSequences * Sequences::kLength);
  return static_cast<double>(reachable) / static_cast<double>(resident);
}

TEST(StoreFaults, WhatSurvivesPressureIsReachableFromTheHeadStoredHeadFirst) {
  EXPECT_GE(ReachableShare(Order::kHeadFirst, true), 0.99);
}
TEST(StoreFaults, WhatSurvivesPressureIsReachableFromTheHeadStoredTailFirst) {
  EXPECT_GE(ReachableShare(Order::kTailFirst, true), 0.99);
}
TEST(StoreFaults, WhatSurvivesPressureIsReachableFromTheHeadStoredInTurns) {
  EXPECT_GE(ReachableShare(Order::kInTurns, true), 0.99);
}
// A full store: whoever stores the next chunk of a sequence needs the one before it.
TEST(StoreFaults, AWriterNeverEvictsTheChunkThatItsOwnFollows) {
  TestStore t(3 * Sequences::kChunk);
  ASSERT_TRUE(Sequences::Put(t, 0, 0, true).ok());
  ASSERT_TRUE(Sequences::Put(t, 1, 0, true).ok());
  ASSERT_TRUE(Sequences::Put(t, 2, 0, true).ok());
  ASSERT_TRUE(Sequences::Put(t, 0, 1, true).ok());  // 0/0 is the least recently used.
  EXPECT_EQ(t.Match(Sequences::Keys(0)), 2u);
}
// A writer that does not say what follows what, tail first: then the order of use has to do.
TEST(StoreFaults, TailFirstIsReachableEvenWithoutParents) {
  EXPECT_GE(ReachableShare(Order::kTailFirst, false), 0.9);
}

TEST(StoreFaults, WhatIsGoneAfterTheMatchIsToldKeyByKey) {
  TestStore t(8 * kMiB);
  const std::vector<ChunkKey> keys = KeyRange(0, 64);
  for (const size_t gone : {1, 32, 64}) {
    for (const ChunkKey& key : keys) {
      const Status put = t.Put(key, 4 * kKiB, {.version = 4});
      ASSERT_TRUE(put.ok() || put.code() == Code::kAlreadyExists);
    }
    ASSERT_EQ(t.Match(keys), 64u);
    for (size_t i = 0; i < gone; ++i) ASSERT_TRUE(t.store->Drop(keys[63 - i], t.ns).ok());
    const auto found = t.store->FindMany(keys, t.terms);
    ASSERT_EQ(found.size(), 64u);
    for (size_t i = 0; i < 64; ++i) {
      ASSERT_EQ(found[i].status().code(), i < 64 - gone ? Code::kOk : Code::kMiss);
      if (found[i].ok()) {
        ASSERT_EQ(VersionOf(*found[i]), 4u);
      }
    }
  }
}

TEST(StoreFaults, WhatWasReservedIsThereUntilTheReservationEnds) {
  constexpr uint64_t kChunk = 4 * kKiB;
  TestStore t(128 * kChunk);
  const std::vector<ChunkKey> keys = KeyRange(0, 64);
  for (const ChunkKey& key : keys) ASSERT_TRUE(t.Put(key, kChunk).ok());
  const KeyGroup group{t.terms, keys, 0};
  const auto match = t.store->Match({&group, 1}, ReserveRequest{OwnerId{1}, seconds(30)});
  ASSERT_EQ((*match).matched, 64u);
  for (int i = 0; i < 10; ++i) {  // A long queue, and pressure all the time.
    t.clock.Advance(milliseconds(2999));
    t.store->Maintain();
    for (uint64_t n = 0; n < 128; ++n) {
      ASSERT_TRUE(t.Put(TestKey(1000 + i * 128 + n), kChunk).ok());
    }
  }
  for (const auto& found : t.store->FindMany(keys, t.terms)) ASSERT_TRUE(found.ok());
  t.clock.Advance(milliseconds(10));
  t.store->Maintain();
  for (uint64_t n = 0; n < 128; ++n) ASSERT_TRUE(t.Put(TestKey(9000 + n), kChunk).ok());
  EXPECT_EQ(t.Match(keys), 0u);
}

// ---- Outcomes

TEST(StoreFaults, EveryOutcomeHasItsOwnAnswerAndEmptyIsPresent) {
  ChunkStoreOptions options = TestStore::Options(kMiB);
  options.max_chunk_bytes = kMiB / 2;
  TestStore t(options);
  ASSERT_TRUE(t.Put(TestKey(1), 0).ok());
  ASSERT_TRUE(t.Put(TestKey(2), 100, {.tag = 1}).ok());
  auto uncommitted = t.Begin(TestKey(3), 100);
  ASSERT_TRUE(uncommitted.ok());
  auto corrupt = t.Begin(TestKey(4), 100);
  ASSERT_TRUE(corrupt.ok());
  static_cast<char*>(corrupt->pieces()[0].iov_base)[0] ^= 1;

  const auto empty = t.store->Find(TestKey(1), t.terms);
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ((*empty).bytes(), 0u);
  EXPECT_TRUE((*empty).pieces().empty());
  EXPECT_FALSE((*empty).encoded_manifest().empty());
  EXPECT_EQ(t.Match({TestKey(1)}), 1u);
  EXPECT_EQ(t.store->Stat(TestKey(1), t.terms)->bytes, 0u);
  EXPECT_EQ(t.Put(TestKey(1), 0).code(), Code::kAlreadyExists);

  const std::vector<Code> codes = {
      Code::kOk,                                                        // Empty value.
      t.store->Find(TestKey(9), t.terms).status().code(),               // Absent.
      t.store->Find(TestKey(2), t.terms).status().code(),               // Wrong tag.
      t.store->Commit(std::move(corrupt).value()).code(),               // Wrong bytes.
      t.Put(TestKey(2), 100).code(),                                    // Exists.
      t.Put(TestKey(5), kMiB).code(),                                   // Too large.
      t.store->ReleaseReservation(ReservationId{1}, OwnerId{1}).code()  // No such promise.
  };
  EXPECT_EQ(std::set<Code>(codes.begin(), codes.end()).size(), codes.size());
  EXPECT_EQ(codes[1], Code::kMiss);
  EXPECT_EQ(t.store->Find(TestKey(3), t.terms).status().code(), Code::kMiss);  // Not committed.
  EXPECT_TRUE(t.store->Drop(TestKey(1), t.ns).ok());
  EXPECT_EQ(t.store->Find(TestKey(1), t.terms).status().code(), Code::kMiss);
}

// A chunk without a single segment is the other way to be empty.
TEST(StoreFaults, AChunkWithoutSegmentsIsPresentAndEmpty) {
  TestStore t(kMiB);
  auto [chunk, value] = t.Make(TestKey(1), 0);
  chunk.manifest.segments.clear();
  auto pending = t.store->Begin(std::move(chunk));
  if (!pending.ok()) {  // The format may forbid it; then it must be refused, not stored.
    EXPECT_EQ(pending.status().code(), Code::kInvalidArgument);
    return;
  }
  EXPECT_TRUE(t.store->Commit(std::move(pending).value()).ok());
  EXPECT_EQ((*t.store->Find(TestKey(1), t.terms)).bytes(), 0u);
}

TEST(StoreFaults, SecondPutIsRefusedUnlessItAsksToReplaceAndReadersKeepWhatTheyHave) {
  TestStore t(8 * kMiB);
  const ChunkKey key = TestKey(1);
  ASSERT_TRUE(t.Put(key, 1000, {.version = 1}).ok());
  const auto reader = t.store->Find(key, t.terms);
  ASSERT_TRUE(reader.ok());

  EXPECT_EQ(t.Put(key, 1000, {.version = 2}).code(), Code::kAlreadyExists);
  EXPECT_EQ(t.Get(key), 1u);
  uint64_t version = 3;
  for (const uint64_t bytes : {1000u, 5000u, 10u, 0u}) {  // Same, longer, shorter, empty.
    EXPECT_TRUE(t.Put(key, bytes, {.version = version, .replace = true}).ok());
    const auto now = t.store->Find(key, t.terms);
    EXPECT_EQ((*now).bytes(), bytes);
    if (bytes > 0) {
      EXPECT_EQ(VersionOf(*now), version);
    }
    EXPECT_EQ(VersionOf(*reader), 1u);
    ++version;
  }
  EXPECT_EQ(t.store->Stats().replaced_chunks, 4u);
  EXPECT_EQ(t.store->Stats().detached_chunks, 1u);  // What the reader holds.
  EXPECT_EQ(t.store->Stats().chunks, 1u);
  t.ExpectCountersAddUp();
}

TEST(StoreFaults, ReplacingAParentKeepsItBehindItsChildren) {
  constexpr uint64_t kChunk = 4 * kKiB;
  TestStore t(8 * kChunk);
  ASSERT_TRUE(t.Put(TestKey(0), kChunk).ok());
  ASSERT_TRUE(t.Put(TestKey(1), kChunk, {.parent = TestKey(0)}).ok());
  ASSERT_TRUE(t.Put(TestKey(0), kChunk, {.version = 2, .replace = true}).ok());
  EXPECT_EQ(t.store->Stat(TestKey(0), t.terms)->children, 1u);
  for (uint64_t i = 10; i < 17; ++i) ASSERT_TRUE(t.Put(TestKey(i), kChunk).ok());
  EXPECT_TRUE(t.Has(TestKey(0)));
  EXPECT_FALSE(t.Has(TestKey(1)));
}

// ---- Figures

TEST(StoreFaults, EveryFigureIsExactAtEveryStep) {
  constexpr uint64_t kBytes = 1000, kTaken = 1024;
  TestStore t(2048 * kKiB);
  const auto stats = [&] {
    t.ExpectCountersAddUp();
    return t.store->Stats();
  };
  for (uint64_t i = 0; i < 1000; ++i) ASSERT_TRUE(t.Put(TestKey(i), kBytes).ok());
  EXPECT_EQ(stats().committed, 1000u);
  EXPECT_EQ(stats().committed_bytes, 1000 * kBytes);
  EXPECT_EQ(stats().used_bytes, 1000 * kTaken);
  for (uint64_t i = 0; i < 600; ++i) ASSERT_TRUE(t.store->Find(TestKey(i), t.terms).ok());
  for (uint64_t i = 0; i < 300; ++i) ASSERT_FALSE(t.store->Find(TestKey(5000 + i), t.terms).ok());
  EXPECT_EQ(stats().hits, 600u);
  EXPECT_EQ(stats().misses, 300u);
  for (uint64_t i = 0; i < 100; ++i) {  // Loads that fail: the bytes were wrong.
    auto pending = t.Begin(TestKey(6000 + i), kBytes);
    static_cast<char*>(pending->pieces()[0].iov_base)[500] ^= 1;
    ASSERT_FALSE(t.store->Commit(std::move(pending).value()).ok());
  }
  EXPECT_EQ(stats().failed[static_cast<size_t>(Code::kChecksumMismatch)], 100u);
  EXPECT_EQ(stats().used_bytes, 1000 * kTaken);
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(t.Put(TestKey(i), 2 * kBytes, {.replace = true}).ok());
  }
  EXPECT_EQ(stats().replaced_chunks, 50u);
  EXPECT_EQ(stats().chunks, 1000u);
  EXPECT_EQ(stats().chunk_bytes, 1050 * kBytes);
  EXPECT_EQ(stats().used_bytes, 950 * kTaken + 50 * 2 * kTaken);
  for (uint64_t i = 0; i < 200; ++i) ASSERT_TRUE(t.store->Drop(TestKey(i), t.ns).ok());
  EXPECT_EQ(stats().dropped_chunks, 200u);
  EXPECT_EQ(stats().used_bytes, 800 * kTaken);
  EXPECT_EQ(t.store->Clear(), 800u);
  EXPECT_EQ(stats().dropped_chunks, 1000u);
  EXPECT_EQ(stats().evicted_chunks, 0u);
  EXPECT_EQ(t.store->GetNamespace(t.ns)->bytes, 0u);
  t.ExpectEmpty();
}

}  // namespace
}  // namespace penstock
