// ChunkStore under pressure: what goes, what stays, and how promises end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/daemon/store/chunk_store.h"
#include "tests/unit/store_testing.h"

namespace penstock {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

uint64_t Refused(const TestStore& t, Code code) {
  return t.store->Stats().refused[static_cast<size_t>(code)];
}

// Eight chunks fill it.
class StoreRetention : public testing::Test {
 protected:
  static constexpr uint64_t kChunk = 128 * kKiB;
  static constexpr OwnerId kOwner{7};

  void Fill(uint64_t from = 0, uint64_t to = 8) {
    for (uint64_t i = from; i < to; ++i) ASSERT_TRUE(t_.Put(TestKey(i), kChunk).ok()) << i;
  }
  std::vector<ChunkKey> Keys(uint64_t from, uint64_t to) {
    std::vector<ChunkKey> keys;
    for (uint64_t i = from; i < to; ++i) keys.push_back(TestKey(i));
    return keys;
  }
  MatchResult Reserve(const std::vector<ChunkKey>& keys, Duration ttl, OwnerId owner = kOwner) {
    const KeyGroup group{t_.terms, keys, 0};
    return t_.store->Match({&group, 1}, ReserveRequest{owner, ttl}).value();
  }

  TestStore t_{8 * kChunk};
};

TEST_F(StoreRetention, AFullStoreMakesRoomFromTheLeastRecentlyUsed) {
  Fill();
  EXPECT_EQ(t_.Match({TestKey(0)}), 1u);
  EXPECT_TRUE(t_.Get(TestKey(1)).has_value());
  EXPECT_EQ(t_.store->Touch(Keys(2, 3), t_.terms), 1u);
  Fill(8, 10);
  EXPECT_TRUE(t_.Has(TestKey(0)) && t_.Has(TestKey(1)) && t_.Has(TestKey(2)));
  EXPECT_FALSE(t_.Has(TestKey(3)) || t_.Has(TestKey(4)));
  EXPECT_EQ(t_.store->Stats().evicted_chunks, 2u);
  EXPECT_EQ(t_.store->Stats().evicted_bytes, 2 * kChunk);
  t_.ExpectCountersAddUp();
}

TEST_F(StoreRetention, StoringAgainWhatIsThereRefreshesIt) {
  Fill();
  EXPECT_EQ(t_.Put(TestKey(0), kChunk).code(), Code::kAlreadyExists);
  Fill(8, 9);
  EXPECT_TRUE(t_.Has(TestKey(0)));
  EXPECT_FALSE(t_.Has(TestKey(1)));
}

TEST_F(StoreRetention, AFetchThatMissesDoesNotRefreshWhatIsBehind) {
  Fill();
  const std::vector keys = {TestKey(0), TestKey(99), TestKey(1)};
  EXPECT_EQ(t_.store->FindMany(keys, t_.terms)[2].status().code(), Code::kOk);
  EXPECT_EQ(t_.store->Touch(keys, t_.terms), 1u);
  Fill(8, 9);
  EXPECT_TRUE(t_.Has(TestKey(0)));
  EXPECT_FALSE(t_.Has(TestKey(1)));
}

TEST_F(StoreRetention, AMatchOfTwoGroupsRefreshesExactlyWhatItAnswered) {
  Fill();
  // The second group stops the answer at one chunk; the first had two.
  const std::vector<ChunkKey> a = {TestKey(0), TestKey(1)}, b = {TestKey(2), TestKey(99)};
  const std::vector<KeyGroup> groups = {{t_.terms, a, 0}, {t_.terms, b, 0}};
  EXPECT_EQ(t_.store->Match(groups)->matched, 1u);
  Fill(8, 9);
  EXPECT_TRUE(t_.Has(TestKey(0)) && t_.Has(TestKey(2)));
  EXPECT_FALSE(t_.Has(TestKey(1)));
}

TEST_F(StoreRetention, OnlyWhenEverythingIsHeldIsAStoreRefusedAllPinned) {
  Fill();
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(t_.store->Pin(TestKey(i), t_.terms, hours(1)).ok());
  }
  ASSERT_EQ(Reserve(Keys(3, 5), minutes(1)).matched, 2u);
  std::vector<Result<ChunkRef>> readers = t_.store->FindMany(Keys(5, 7), t_.terms);
  EXPECT_TRUE(t_.Put(TestKey(8), kChunk).ok());  // 7 was free to go.
  EXPECT_FALSE(t_.Has(TestKey(7)));
  ASSERT_TRUE(t_.store->Pin(TestKey(8), t_.terms, hours(1)).ok());
  EXPECT_EQ(t_.Put(TestKey(9), kChunk).code(), Code::kAllPinned);
  EXPECT_EQ(Refused(t_, Code::kAllPinned), 1u);
  EXPECT_EQ(Refused(t_, Code::kBusy), 0u);
  for (uint64_t i = 0; i < 7; ++i) EXPECT_TRUE(t_.Has(TestKey(i))) << i;

  readers.clear();  // A reader is done: its chunks may go.
  EXPECT_TRUE(t_.Put(TestKey(9), kChunk).ok());
  t_.ExpectCountersAddUp();
}

TEST_F(StoreRetention, SpaceThatWritesInProgressWillGiveBackIsBusyAndNotAllPinned) {
  std::vector<PendingChunk> writers;
  for (uint64_t i = 0; i < 8; ++i) writers.push_back(t_.Begin(TestKey(i), kChunk).value());
  EXPECT_EQ(t_.Put(TestKey(9), kChunk).code(), Code::kBusy);
  writers.clear();
  EXPECT_TRUE(t_.Put(TestKey(9), kChunk).ok());
}

TEST_F(StoreRetention, SpaceThatAReaderOfADroppedChunkHoldsIsBusyAndNotAllPinned) {
  Fill();
  auto readers = t_.store->FindMany(Keys(0, 8), t_.terms);
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(t_.store->Drop(TestKey(i), t_.ns).ok());
  EXPECT_EQ(t_.store->Stats().detached_chunks, 8u);
  EXPECT_EQ(t_.store->Stats().detached_bytes, 8 * kChunk);
  EXPECT_EQ(t_.Put(TestKey(9), kChunk).code(), Code::kBusy);
  readers.clear();
  t_.ExpectEmpty();
  EXPECT_TRUE(t_.Put(TestKey(9), kChunk).ok());
}

// Bytes of the payload would not do: what comes back is whole granules.
TEST(StoreRetentionBusy, SmallWritesInProgressAreCountedByTheRoomTheyTake) {
  TestStore t(64 * kKiB);
  std::vector<PendingChunk> writers;
  for (uint64_t i = 0; i < 200; ++i) writers.push_back(t.Begin(TestKey(i), 1).value());
  EXPECT_EQ(t.Put(TestKey(999), 64 * kKiB).code(), Code::kBusy);
  writers.clear();
  EXPECT_TRUE(t.Put(TestKey(999), 64 * kKiB).ok());
}

TEST_F(StoreRetention, AReservationHoldsUntilItIsReleased) {
  Fill();
  const MatchResult match = Reserve(Keys(0, 2), minutes(1));
  ASSERT_NE(match.reservation, ReservationId::kNone);
  EXPECT_EQ(match.reservation_ttl, minutes(1));
  EXPECT_EQ(t_.store->Stats().reservations, 1u);
  EXPECT_EQ(t_.store->Stats().reserved_bytes, 2 * kChunk);
  Fill(8, 24);
  EXPECT_TRUE(t_.Has(TestKey(0)) && t_.Has(TestKey(1)));
  EXPECT_TRUE(t_.store->ReleaseReservation(match.reservation, kOwner).ok());
  EXPECT_EQ(t_.store->Stats().reserved_bytes, 0u);
  Fill(24, 32);
  EXPECT_FALSE(t_.Has(TestKey(0)) || t_.Has(TestKey(1)));
  t_.ExpectCountersAddUp();
}

TEST_F(StoreRetention, AReservationIsEndedOnceAndByItsOwnerOnly) {
  Fill();
  const MatchResult match = Reserve(Keys(0, 2), minutes(1));
  EXPECT_EQ(t_.store->ReleaseReservation(match.reservation, OwnerId{8}).code(), Code::kFenced);
  EXPECT_EQ(t_.store->RenewReservation(match.reservation, OwnerId{8}, hours(1)).code(),
            Code::kFenced);
  EXPECT_TRUE(t_.store->ReleaseReservation(match.reservation, kOwner).ok());
  EXPECT_EQ(t_.store->ReleaseReservation(match.reservation, kOwner).code(), Code::kFenced);
  EXPECT_EQ(t_.store->RenewReservation(match.reservation, kOwner, hours(1)).code(), Code::kFenced);
  EXPECT_EQ(t_.store->ReleaseReservation(ReservationId::kNone, kOwner).code(), Code::kFenced);
  EXPECT_EQ(t_.store->Stats().reserved_chunks, 0u);
}

TEST_F(StoreRetention, ReservationIdsAreNotConsecutive) {
  Fill();
  std::vector<uint64_t> ids;
  for (int i = 0; i < 64; ++i) {
    ids.push_back(static_cast<uint64_t>(Reserve(Keys(0, 1), minutes(1)).reservation));
  }
  std::sort(ids.begin(), ids.end());
  for (size_t i = 1; i < ids.size(); ++i) ASSERT_GT(ids[i] - ids[i - 1], 1u << 20);
}

TEST_F(StoreRetention, AReservationEndsByItsTimeEvenIfNobodyCalls) {
  Fill();
  Reserve(Keys(0, 8), seconds(10));
  EXPECT_EQ(t_.Put(TestKey(9), kChunk).code(), Code::kAllPinned);
  t_.clock.Advance(milliseconds(9999));
  EXPECT_EQ(t_.store->Maintain().expired_reservations, 0u);
  EXPECT_EQ(t_.Put(TestKey(9), kChunk).code(), Code::kAllPinned);
  t_.clock.Advance(milliseconds(1));
  EXPECT_TRUE(t_.Put(TestKey(9), kChunk).ok());  // Without Maintain().
  EXPECT_EQ(t_.store->Stats().reservations, 0u);
  EXPECT_EQ(t_.store->Stats().reservations_expired, 1u);
  t_.ExpectCountersAddUp();
}

TEST_F(StoreRetention, AReservationThatIsOverIsFencedEvenIfNobodyHasLookedSince) {
  Fill();
  const MatchResult one = Reserve(Keys(0, 1), seconds(10));
  const MatchResult other = Reserve(Keys(1, 2), seconds(10));
  t_.clock.Advance(seconds(10));
  EXPECT_EQ(t_.store->RenewReservation(one.reservation, kOwner, seconds(10)).code(), Code::kFenced);
  EXPECT_EQ(t_.store->ReleaseReservation(other.reservation, kOwner).code(), Code::kFenced);
  EXPECT_EQ(t_.store->Stats().reservations_expired, 2u);
  t_.ExpectCountersAddUp();
}

TEST_F(StoreRetention, ARenewedReservationEndsAtItsNewTime) {
  Fill();
  const MatchResult match = Reserve(Keys(0, 8), seconds(10));
  t_.clock.Advance(seconds(9));
  EXPECT_TRUE(t_.store->RenewReservation(match.reservation, kOwner, seconds(10)).ok());
  t_.clock.Advance(seconds(9));
  EXPECT_EQ(t_.store->Maintain().expired_reservations, 0u);
  t_.clock.Advance(seconds(1));
  EXPECT_EQ(t_.store->Maintain().expired_reservations, 1u);
}

TEST_F(StoreRetention, WishesBeyondTheMaximumAreCut) {
  Fill();
  EXPECT_EQ(Reserve(Keys(0, 1), hours(100)).reservation_ttl, minutes(5));
  t_.clock.Advance(minutes(5));
  EXPECT_EQ(t_.store->Maintain().expired_reservations, 1u);
}

TEST_F(StoreRetention, TheDeathOfAnOwnerEndsItsReservationsAndNobodyElses) {
  Fill();
  Reserve(Keys(0, 2), minutes(1));
  Reserve(Keys(1, 3), minutes(1));  // Shares one chunk with the first.
  Reserve(Keys(4, 6), minutes(1), OwnerId{8});
  EXPECT_EQ(t_.store->Stats().reservations, 3u);
  EXPECT_EQ(t_.store->Stats().reserved_chunks, 5u);  // 1 counts once.
  EXPECT_EQ(t_.store->ReleaseOwner(kOwner), 2u);
  EXPECT_EQ(t_.store->ReleaseOwner(kOwner), 0u);
  EXPECT_EQ(t_.store->Stats().reserved_chunks, 2u);
  EXPECT_EQ(t_.store->Stats().reserved_bytes, 2 * kChunk);
}

TEST_F(StoreRetention, AMatchOfNothingReservesNothing) {
  Fill();
  const MatchResult match = Reserve({TestKey(99), TestKey(0)}, minutes(1));
  EXPECT_EQ(match.matched, 0u);
  EXPECT_EQ(match.reservation, ReservationId::kNone);
  EXPECT_TRUE(match.reserve_status.ok());
  EXPECT_EQ(t_.store->Stats().reservations_made, 0u);
}

TEST(StoreRetentionBudget, ReservationsBeyondTheBudgetAreToldAndTheMatchStands) {
  ChunkStoreOptions options = TestStore::Options(8 * kMiB);
  options.max_reserved = 0.5;
  TestStore t(options);
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(t.Put(TestKey(i), kMiB).ok());
  std::vector<ChunkKey> four, five;
  for (uint64_t i = 0; i < 5; ++i) five.push_back(TestKey(i));
  four.assign(five.begin(), five.begin() + 4);
  const auto reserve = [&](const std::vector<ChunkKey>& keys) {
    const KeyGroup group{t.terms, keys, 0};
    return t.store->Match({&group, 1}, ReserveRequest{OwnerId{1}, seconds(1)}).value();
  };
  EXPECT_TRUE(reserve(four).reserve_status.ok());
  EXPECT_TRUE(reserve(four).reserve_status.ok());  // The same chunks cost nothing more.
  const MatchResult refused = reserve(five);
  EXPECT_EQ(refused.matched, 5u);
  EXPECT_EQ(refused.reservation, ReservationId::kNone);
  EXPECT_EQ(refused.reserve_status.code(), Code::kBusy);
  EXPECT_EQ(t.store->Stats().reservations_refused, 1u);
  EXPECT_EQ(t.store->Stats().reserved_bytes, 4 * kMiB);
  t.clock.Advance(seconds(1));
  EXPECT_FALSE(reserve(five).reserve_status.ok());  // More than the budget by itself.
  EXPECT_TRUE(reserve(four).reserve_status.ok());
}

TEST(StoreRetentionBudget, TheNumberOfReservationsAndTheirReferencesAreBoundedToo) {
  ChunkStoreOptions options = TestStore::Options(kMiB);
  options.max_reservations = 3;
  options.max_reserved_refs = 5;
  TestStore t(options);
  ASSERT_TRUE(t.Put(TestKey(0), 100).ok() && t.Put(TestKey(1), 100).ok());
  const auto reserve = [&](uint64_t keys) {
    const std::vector<ChunkKey> list(keys, TestKey(0));
    const KeyGroup group{t.terms, list, 0};
    return t.store->Match({&group, 1}, ReserveRequest{OwnerId{1}, seconds(1)})
        ->reserve_status.code();
  };
  EXPECT_EQ(reserve(6), Code::kBusy);
  EXPECT_EQ(reserve(3), Code::kOk);
  EXPECT_EQ(reserve(3), Code::kBusy);
  EXPECT_EQ(reserve(1), Code::kOk);
  EXPECT_EQ(reserve(1), Code::kOk);
  EXPECT_EQ(reserve(1), Code::kBusy);
  EXPECT_EQ(t.store->Stats().reserved_chunks, 1u);
  EXPECT_EQ(t.store->ReleaseOwner(OwnerId{1}), 3u);
  EXPECT_EQ(t.store->Stats().reserved_chunks, 0u);
  EXPECT_EQ(reserve(5), Code::kOk);
}

TEST_F(StoreRetention, APinHoldsForItsTimeAndIsOneAKey) {
  Fill();
  EXPECT_EQ(t_.store->Pin(TestKey(0), t_.terms, Duration(0)).code(), Code::kInvalidArgument);
  EXPECT_EQ(t_.store->Pin(TestKey(99), t_.terms, hours(1)).code(), Code::kMiss);
  ASSERT_TRUE(t_.store->Pin(TestKey(0), t_.terms, hours(2)).ok());
  ASSERT_TRUE(t_.store->Pin(TestKey(0), t_.terms, hours(1)).ok());
  EXPECT_EQ(t_.store->Stats().pinned_chunks, 1u);
  EXPECT_EQ(t_.store->Stats().pinned_bytes, kChunk);
  EXPECT_EQ(t_.store->Stat(TestKey(0), t_.terms)->pin_left, hours(1));
  Fill(8, 24);
  EXPECT_TRUE(t_.Has(TestKey(0)));
  t_.clock.Advance(hours(1));
  EXPECT_EQ(t_.store->Maintain().expired_pins, 1u);
  EXPECT_EQ(t_.store->Stats().pinned_chunks, 0u);
  EXPECT_EQ(t_.store->Unpin(TestKey(0), t_.terms).code(), Code::kFenced);
  Fill(24, 32);
  EXPECT_FALSE(t_.Has(TestKey(0)));
}

TEST_F(StoreRetention, UnpinEndsThePinOnce) {
  Fill();
  ASSERT_TRUE(t_.store->Pin(TestKey(0), t_.terms, hours(1)).ok());
  EXPECT_TRUE(t_.store->Unpin(TestKey(0), t_.terms).ok());
  EXPECT_EQ(t_.store->Unpin(TestKey(0), t_.terms).code(), Code::kFenced);
  EXPECT_EQ(t_.store->Unpin(TestKey(99), t_.terms).code(), Code::kMiss);
  EXPECT_EQ(t_.store->Stats().pinned_bytes, 0u);
}

TEST_F(StoreRetention, APinPassesOnToTheReplacement) {
  Fill();
  ASSERT_TRUE(t_.store->Pin(TestKey(0), t_.terms, hours(1)).ok());
  ASSERT_TRUE(t_.Put(TestKey(0), kChunk / 2, {.version = 2, .replace = true}).ok());
  EXPECT_EQ(t_.store->Stats().pinned_bytes, kChunk / 2);
  EXPECT_EQ(t_.store->Stats().detached_chunks, 0u);
  Fill(8, 24);
  EXPECT_EQ(t_.Get(TestKey(0)), 2u);
  EXPECT_TRUE(t_.store->Unpin(TestKey(0), t_.terms).ok());
}

TEST(StoreRetentionBudget, APinThatIsOverTakesNoRoomFromOneThatPassesOn) {
  ChunkStoreOptions options = TestStore::Options(8 * kMiB);
  options.max_pinned = 0.25;
  TestStore t(options);
  for (uint64_t i = 0; i < 2; ++i) ASSERT_TRUE(t.Put(TestKey(i), kMiB).ok());
  ASSERT_TRUE(t.store->Pin(TestKey(0), t.terms, std::chrono::seconds(1)).ok());
  ASSERT_TRUE(t.store->Pin(TestKey(1), t.terms, std::chrono::hours(1)).ok());
  t.clock.Advance(std::chrono::seconds(1));
  ASSERT_TRUE(t.Put(TestKey(1), 2 * kMiB, {.replace = true}).ok());
  EXPECT_TRUE(t.store->Stat(TestKey(1), t.terms)->pinned);
}

TEST(StoreRetentionBudget, PinsBeyondTheBudgetAreRefused) {
  ChunkStoreOptions options = TestStore::Options(8 * kMiB);
  options.max_pinned = 0.25;
  options.max_pins = 3;
  TestStore t(options);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(t.Put(TestKey(i), kMiB).ok());
  for (uint64_t i = 3; i < 6; ++i) ASSERT_TRUE(t.Put(TestKey(i), 0).ok());
  const auto pin = [&](uint64_t i) {
    return t.store->Pin(TestKey(i), t.terms, std::chrono::hours(1)).code();
  };
  EXPECT_EQ(pin(0), Code::kOk);
  EXPECT_EQ(pin(1), Code::kOk);
  EXPECT_EQ(pin(2), Code::kBusy);
  EXPECT_EQ(pin(3), Code::kOk);
  EXPECT_EQ(pin(4), Code::kBusy);
  EXPECT_EQ(pin(0), Code::kOk);  // Again is no more.
  // A replacement that does not fit the budget loses the pin rather than break it.
  ASSERT_TRUE(t.Put(TestKey(0), 2 * kMiB, {.replace = true}).ok());
  EXPECT_EQ(t.store->Stats().pinned_bytes, kMiB);
  EXPECT_FALSE(t.store->Stat(TestKey(0), t.terms)->pinned);
}

TEST_F(StoreRetention, StatTellsWhoHoldsAChunk) {
  ASSERT_TRUE(t_.Put(TestKey(0), kChunk).ok());
  ASSERT_TRUE(t_.Put(TestKey(1), kChunk, {.parent = TestKey(0)}).ok());
  ASSERT_TRUE(t_.Put(TestKey(2), kChunk, {.parent = TestKey(0)}).ok());
  const auto reader = t_.store->Find(TestKey(0), t_.terms);
  Reserve(Keys(0, 1), minutes(1));
  ASSERT_TRUE(t_.store->Pin(TestKey(0), t_.terms, hours(1)).ok());
  t_.clock.Advance(seconds(3));
  const auto info = t_.store->Stat(TestKey(0), t_.terms);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ((*info).bytes, kChunk);
  EXPECT_EQ((*info).children, 2u);
  EXPECT_EQ((*info).readers, 2u);
  EXPECT_TRUE((*info).pinned);
  EXPECT_EQ((*info).pin_left, hours(1) - seconds(3));
  EXPECT_EQ(std::chrono::round<milliseconds>((*info).idle), seconds(3));
  const auto child = t_.store->Stat(TestKey(1), t_.terms);
  EXPECT_EQ((*child).parent, TestKey(0));
  EXPECT_EQ((*child).readers, 0u);
  EXPECT_FALSE((*child).pinned);
}

TEST(StoreMaintain, KeepsHeadroomFreeSoThatStoresNeedNotEvict) {
  ChunkStoreOptions options = TestStore::Options(100 * kMiB);
  options.headroom = 0.1;
  TestStore t(options);
  for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(t.Put(TestKey(i), kMiB).ok());
  EXPECT_EQ(t.store->Stats().free_bytes, 0u);
  const ChunkStore::Maintenance done = t.store->Maintain();
  EXPECT_EQ(done.evicted, 10u);
  EXPECT_FALSE(done.more);
  EXPECT_EQ(t.store->Stats().free_bytes, 10 * kMiB);
  const uint64_t evicted = t.store->Stats().evicted_chunks;
  for (uint64_t i = 200; i < 210; ++i) ASSERT_TRUE(t.Put(TestKey(i), kMiB).ok());
  EXPECT_EQ(t.store->Stats().evicted_chunks, evicted);
}

TEST(StoreMaintain, DoesBoundedWorkACallAndSaysWhenThereIsMore) {
  ChunkStoreOptions options = TestStore::Options(8 * kMiB);
  options.headroom = 0.5;
  TestStore t(options);
  for (uint64_t i = 0; i < 4096; ++i) ASSERT_TRUE(t.Put(TestKey(i), 2048).ok());
  size_t calls = 1, evicted = 0;
  ChunkStore::Maintenance done;
  for (;; ++calls) {
    done = t.store->Maintain();
    EXPECT_LE(done.evicted, 1024u);
    evicted += done.evicted;
    if (!done.more) break;
    ASSERT_LT(calls, 10u);
  }
  EXPECT_EQ(evicted, 2048u);
  EXPECT_GT(calls, 1u);
}

TEST(StoreMaintain, WhenEverythingIsHeldThereIsNoMoreToDo) {
  ChunkStoreOptions options = TestStore::Options(8 * kMiB);
  options.headroom = 0.5;
  TestStore t(options);
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(t.Put(TestKey(i), kMiB).ok());
    ASSERT_TRUE(t.store->Pin(TestKey(i), t.terms, hours(1)).ok());
  }
  const ChunkStore::Maintenance done = t.store->Maintain();
  EXPECT_EQ(done.evicted, 0u);
  EXPECT_FALSE(done.more);
}

// Chunks without bytes take memory as well: their number is bounded by it.
TEST(StoreMetadata, EmptyChunksAreEvictedBeforeTheirRecordsFillTheMemory) {
  ChunkStoreOptions options = TestStore::Options(kMiB);
  options.max_metadata_bytes = 256 * kKiB;
  TestStore t(options);
  for (uint64_t i = 0; i < 5000; ++i) ASSERT_TRUE(t.Put(TestKey(i), 0).ok()) << i;
  const ChunkStoreStats stats = t.store->Stats();
  EXPECT_LE(stats.metadata_bytes, 256 * kKiB);
  EXPECT_GT(stats.evicted_chunks, 4000u);
  EXPECT_TRUE(t.Has(TestKey(4999)));
  EXPECT_FALSE(t.Has(TestKey(0)));
  t.ExpectCountersAddUp();
}

TEST(StoreFragmentation, ALargeChunkAfterManySmallOnesTakesOnlyTheRoomItNeeds) {
  TestStore t(64 * kMiB);
  for (uint64_t i = 0; i < 16384; ++i) ASSERT_TRUE(t.Put(TestKey(i), 4 * kKiB).ok());
  ASSERT_TRUE(t.Put(TestKey(99'999), 2 * kMiB, {.version = 3}).ok());
  EXPECT_EQ(t.store->Stats().evicted_bytes, 2 * kMiB);
  EXPECT_EQ(t.Get(TestKey(99'999)), 3u);
}

}  // namespace
}  // namespace penstock
