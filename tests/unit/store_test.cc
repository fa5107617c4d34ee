// ChunkStore call by call: writing, reading, matching. Holds and retention:
// store_retention_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/daemon/store/chunk_store.h"
#include "tests/unit/store_testing.h"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

uint64_t Refused(const TestStore& t, Code code) {
  return t.store->Stats().refused[static_cast<size_t>(code)];
}
uint64_t Failed(const TestStore& t, Code code) {
  return t.store->Stats().failed[static_cast<size_t>(code)];
}

// ---- Writing

TEST(Store, FindsWhatWasCommittedAndNothingElse) {
  TestStore t(8 * kMiB);
  ASSERT_TRUE(t.Put(TestKey(1), 100 * kKiB, {.version = 7}).ok());
  EXPECT_EQ(t.Get(TestKey(1)), 7u);
  EXPECT_EQ(t.store->Find(TestKey(2), t.terms).status().code(), Code::kMiss);
  t.ExpectCountersAddUp();
}

TEST(Store, AChunkCarriesItsManifestReadyToSend) {
  TestStore t(8 * kMiB);
  auto [chunk, value] = t.Make(TestKey(1), 1000, {.parent = TestKey(9), .tag = 5});
  const Manifest manifest = chunk.manifest;
  auto pending = t.store->Begin(std::move(chunk));
  ASSERT_TRUE(pending.ok());
  EXPECT_EQ(pending->manifest(), manifest);
  EXPECT_EQ(pending->key(), TestKey(1));
  EXPECT_EQ(pending->bytes(), 1000u);
  Scatter(value, pending->pieces());
  ASSERT_TRUE(t.store->Commit(std::move(pending).value()).ok());
  const auto found = t.store->Find(TestKey(1), {.ns = t.ns, .tag = 5});
  ASSERT_TRUE(found.ok());
  const ChunkRef& ref = *found;
  EXPECT_EQ(ref.manifest(), manifest);
  const std::vector<std::byte> encoded = manifest.Encode();
  EXPECT_TRUE(std::equal(encoded.begin(), encoded.end(), ref.encoded_manifest().begin(),
                         ref.encoded_manifest().end()));
  EXPECT_EQ(ref.parent(), TestKey(9));
  EXPECT_EQ(ref.ns(), t.ns);
  EXPECT_EQ(ref.bytes(), 1000u);
}

TEST(Store, PendingChunkIsInvisibleUntilItsCommit) {
  TestStore t(8 * kMiB);
  auto pending = t.Begin(TestKey(1), 4096);
  ASSERT_TRUE(pending.ok());
  EXPECT_EQ(t.store->Find(TestKey(1), t.terms).status().code(), Code::kMiss);
  EXPECT_EQ(t.Match({TestKey(1)}), 0u);
  EXPECT_EQ(t.store->Stats().pending_bytes, 4096u);
  ASSERT_TRUE(t.store->Commit(std::move(pending).value()).ok());
  EXPECT_EQ(t.Match({TestKey(1)}), 1u);
  EXPECT_EQ(t.store->Stats().pending_bytes, 0u);
}

TEST(Store, CommitOfWrongBytesIsRefusedAndLeavesNothing) {
  TestStore t(8 * kMiB);
  auto pending = t.Begin(TestKey(1), 5000);
  ASSERT_TRUE(pending.ok());
  static_cast<char*>(pending->pieces()[0].iov_base)[4999] ^= 1;
  EXPECT_EQ(t.store->Commit(std::move(pending).value()).code(), Code::kChecksumMismatch);
  EXPECT_FALSE(t.Has(TestKey(1)));
  EXPECT_EQ(Failed(t, Code::kChecksumMismatch), 1u);
  t.ExpectEmpty();
  t.ExpectCountersAddUp();
}

TEST(Store, ChecksumsCanBeLeftToTheReader) {
  ChunkStoreOptions options = TestStore::Options(8 * kMiB);
  options.verify_on_commit = false;
  TestStore t(options);
  auto pending = t.Begin(TestKey(1), 5000);
  ASSERT_TRUE(pending.ok());
  static_cast<char*>(pending->pieces()[0].iov_base)[4999] ^= 1;
  EXPECT_TRUE(t.store->Commit(std::move(pending).value()).ok());
}

TEST(Store, FirstCommitterWinsAndTheSecondIsTold) {
  TestStore t(8 * kMiB);
  auto first = t.Begin(TestKey(1), 1000, {.version = 1});
  auto second = t.Begin(TestKey(1), 2000, {.version = 2});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(t.store->Commit(std::move(second).value()).ok());
  EXPECT_EQ(t.store->Commit(std::move(first).value()).code(), Code::kAlreadyExists);
  EXPECT_EQ(t.Get(TestKey(1)), 2u);
  EXPECT_EQ(t.Begin(TestKey(1), 1000).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(t.store->Stats().exists, 2u);
  EXPECT_EQ(t.store->Stats().chunks, 1u);
  EXPECT_EQ(t.store->Stats().used_bytes, 2048u);
  t.ExpectCountersAddUp();
}

TEST(Store, BeginRefusesWhatIsWrongByItself) {
  ChunkStoreOptions options = TestStore::Options(8 * kMiB);
  options.max_chunk_bytes = kMiB;
  TestStore t(options);
  EXPECT_EQ(t.Begin(TestKey(1), kMiB + 1).status().code(), Code::kTooLarge);
  EXPECT_TRUE(t.Begin(TestKey(1), kMiB).ok());
  EXPECT_EQ(t.Begin(TestKey(1), 10, {.parent = TestKey(1)}).status().code(),
            Code::kInvalidArgument);
  for (const uint32_t ns : {0u, 2u, UINT32_MAX}) {
    auto [chunk, value] = t.Make(TestKey(1), 10);
    chunk.ns = NamespaceId{ns};
    EXPECT_EQ(t.store->Begin(std::move(chunk)).status().code(), Code::kInvalidArgument);
  }
  auto [chunk, value] = t.Make(TestKey(1), 10);
  chunk.manifest.segments.assign(2, chunk.manifest.segments[0]);
  for (Segment& segment : chunk.manifest.segments) segment.stored_bytes = UINT64_MAX / 2 + 1;
  EXPECT_FALSE(t.store->Begin(std::move(chunk)).ok());
  EXPECT_EQ(Refused(t, Code::kTooLarge), 1u);
  EXPECT_EQ(Failed(t, Code::kCancelled), 1u);
  t.ExpectEmpty();
  t.ExpectCountersAddUp();
}

TEST(Store, AKeyOfAnotherNamespaceCanNeitherBeReadNorTakenNorDropped) {
  TestStore t(8 * kMiB);
  const NamespaceId other = t.OpenNamespace("other");
  ASSERT_TRUE(t.Put(TestKey(1), 1000, {.version = 3}).ok());
  const ReadTerms foreign{.ns = other};
  EXPECT_EQ(t.store->Find(TestKey(1), foreign).status().code(), Code::kFormatMismatch);
  EXPECT_EQ(t.store->Stat(TestKey(1), foreign).status().code(), Code::kFormatMismatch);
  EXPECT_EQ(t.store->Pin(TestKey(1), foreign, std::chrono::hours(1)).code(), Code::kFormatMismatch);
  EXPECT_EQ(t.store->Drop(TestKey(1), other).code(), Code::kFormatMismatch);
  EXPECT_EQ(t.store->Touch(std::vector{TestKey(1)}, foreign), 0u);
  for (const bool replace : {false, true}) {
    auto [chunk, value] = t.Make(TestKey(1), 1000, {.replace = replace});
    chunk.ns = other;
    EXPECT_EQ(t.store->Begin(std::move(chunk)).status().code(), Code::kFormatMismatch);
  }
  EXPECT_EQ(t.Get(TestKey(1)), 3u);
  // Begun before the key was taken: the commit must not take it over either.
  auto [late, value] = t.Make(TestKey(2), 1000, {.replace = true});
  late.ns = other;
  auto pending = t.store->Begin(std::move(late));
  ASSERT_TRUE(pending.ok());
  Scatter(value, pending->pieces());
  ASSERT_TRUE(t.Put(TestKey(2), 1000, {.version = 4}).ok());
  EXPECT_EQ(t.store->Commit(std::move(pending).value()).code(), Code::kFormatMismatch);
  EXPECT_EQ(t.Get(TestKey(2)), 4u);
  EXPECT_EQ(Failed(t, Code::kFormatMismatch), 1u);
  t.ExpectCountersAddUp();
}

TEST(Store, BytesInProgressAreBoundedInAllAndForEachOwner) {
  ChunkStoreOptions options = TestStore::Options(8 * kMiB);
  options.max_pending = 0.5;
  options.max_pending_per_owner = 0.5;
  TestStore t(options);
  const OwnerId a{1}, b{2}, c{3};
  std::vector<PendingChunk> held;
  const auto begin = [&](uint64_t key, OwnerId owner) {
    auto pending = t.Begin(TestKey(key), kMiB, {.owner = owner});
    const Code code = pending.status().code();
    if (pending.ok()) held.push_back(std::move(pending).value());
    return code;
  };
  EXPECT_EQ(begin(1, a), Code::kOk);
  EXPECT_EQ(begin(2, a), Code::kOk);
  EXPECT_EQ(begin(3, a), Code::kBusy);  // Half of the half.
  EXPECT_EQ(begin(4, b), Code::kOk);
  EXPECT_EQ(begin(5, b), Code::kOk);
  EXPECT_EQ(begin(6, c), Code::kBusy);
  EXPECT_EQ(Refused(t, Code::kBusy), 2u);
  EXPECT_EQ(Refused(t, Code::kAllPinned), 0u);
  held.clear();
  EXPECT_EQ(begin(6, c), Code::kOk);
  held.clear();
  t.ExpectEmpty();
  t.ExpectCountersAddUp();
}

TEST(Store, OneChunkIsAlwaysAllowedHoweverSmallTheBudgetForPending) {
  ChunkStoreOptions options = TestStore::Options(8 * kMiB);
  options.max_pending = 0;
  TestStore t(options);
  auto one = t.Begin(TestKey(1), kMiB);
  EXPECT_TRUE(one.ok());
  EXPECT_EQ(t.Begin(TestKey(2), kMiB).status().code(), Code::kBusy);
}

TEST(Store, MovingAPendingChunkOverAnotherGivesTheOtherBack) {
  TestStore t(8 * kMiB);
  auto a = t.Begin(TestKey(1), kMiB);
  auto b = t.Begin(TestKey(2), kMiB);
  ASSERT_TRUE(a.ok() && b.ok());
  *a = std::move(*b);
  EXPECT_EQ(t.store->Stats().pending_bytes, kMiB);
  EXPECT_EQ(a->key(), TestKey(2));
}

TEST(Store, AChunkMayLieInSeveralPieces) {
  TestStore t(kMiB);
  for (uint64_t i = 0; i < 64; ++i) ASSERT_TRUE(t.Put(TestKey(i), 16 * kKiB).ok());
  for (uint64_t i = 0; i < 64; i += 2) ASSERT_TRUE(t.store->Drop(TestKey(i), t.ns).ok());
  ASSERT_TRUE(t.Put(TestKey(100), 100 * kKiB + 3, {.version = 6}).ok());
  EXPECT_EQ(t.store->Stats().evicted_chunks, 0u);
  const auto found = t.store->Find(TestKey(100), t.terms);
  ASSERT_TRUE(found.ok());
  EXPECT_GE((*found).pieces().size(), 7u);
  EXPECT_EQ(VersionOf(*found), 6u);
  EXPECT_EQ(t.store->Stat(TestKey(100), t.terms)->extents, (*found).pieces().size());
}

// ---- Reading

TEST(Store, TagsMustMatchUnlessTheChunkHasNone) {
  TestStore t(kMiB);
  ASSERT_TRUE(t.Put(TestKey(1), 100, {.tag = 5}).ok());
  ASSERT_TRUE(t.Put(TestKey(2), 100).ok());
  EXPECT_TRUE(t.store->Find(TestKey(1), {.ns = t.ns, .tag = 5}).ok());
  EXPECT_EQ(t.store->Find(TestKey(1), {.ns = t.ns, .tag = 6}).status().code(),
            Code::kFormatMismatch);
  EXPECT_EQ(t.store->Find(TestKey(1), {.ns = t.ns}).status().code(), Code::kFormatMismatch);
  EXPECT_TRUE(t.store->Find(TestKey(1), {.ns = t.ns, .tag = std::nullopt}).ok());
  EXPECT_TRUE(t.store->Find(TestKey(2), {.ns = t.ns, .tag = 6}).ok());
}

// One choke point: whatever refuses a chunk to one way of reading refuses it to all.
TEST(Store, InexactBytesReachNoReaderThatWantsExactOnesByAnyPath) {
  TestStore t(kMiB);
  const ReadTerms exact{.ns = t.ns}, any{.ns = t.ns, .want_exact = false};
  for (const uint32_t flag : {kManifestLossy, kManifestQueryDependent}) {
    const ChunkKey key = TestKey(flag);
    ASSERT_TRUE(t.Put(key, 100, {.flags = flag}).ok());
    const std::vector keys = {key};
    const KeyGroup strict{exact, keys, 0}, lax{any, keys, 0}, sliding{exact, keys, 1};
    EXPECT_EQ(t.store->Find(key, exact).status().code(), Code::kFormatMismatch);
    EXPECT_EQ(t.store->FindMany(keys, exact)[0].status().code(), Code::kFormatMismatch);
    EXPECT_EQ(t.store->Stat(key, exact).status().code(), Code::kFormatMismatch);
    EXPECT_EQ(t.store->Match({&strict, 1})->matched, 0u);
    EXPECT_EQ(t.store->Match({&sliding, 1})->matched, 0u);
    EXPECT_EQ(t.store->Touch(keys, exact), 0u);
    EXPECT_EQ(t.store->Pin(key, exact, std::chrono::hours(1)).code(), Code::kFormatMismatch);
    EXPECT_TRUE(t.store->Find(key, any).ok());
    EXPECT_EQ(t.store->Match({&lax, 1})->matched, 1u);
  }
}

TEST(Store, BatchesAnswerByPositionDuplicatesIncluded) {
  TestStore t(kMiB);
  ASSERT_TRUE(t.Put(TestKey(1), 100).ok());
  ASSERT_TRUE(t.Put(TestKey(2), 0).ok());
  const std::vector keys = {TestKey(2), TestKey(9), TestKey(1), TestKey(1)};
  const auto found = t.store->FindMany(keys, t.terms);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ((*found[0]).bytes(), 0u);
  EXPECT_EQ(found[1].status().code(), Code::kMiss);
  EXPECT_EQ(*found[2], *found[3]);
  EXPECT_TRUE(t.store->FindMany({}, t.terms).empty());
  const ChunkStoreStats stats = t.store->Stats();
  EXPECT_EQ(stats.hits, 3u);
  EXPECT_EQ(stats.misses, 1u);
}

TEST(Store, AppendSliceCutsAnyRangeOutOfAnyPieces) {
  std::vector<std::byte> a(10), b(0), c(5), d(20);
  const std::vector<iovec> pieces = {
      {a.data(), a.size()}, {b.data(), b.size()}, {c.data(), c.size()}, {d.data(), d.size()}};
  std::vector<std::byte*> all;
  for (const iovec& piece : pieces) {
    for (size_t i = 0; i < piece.iov_len; ++i) {
      all.push_back(static_cast<std::byte*>(piece.iov_base) + i);
    }
  }
  for (uint64_t offset = 0; offset <= 36; ++offset) {
    for (uint64_t length = 0; length <= 37; ++length) {
      absl::InlinedVector<iovec, 4> out = {{nullptr, 0}};
      const bool ok = AppendSlice(pieces, offset, length, out);
      ASSERT_EQ(ok, offset + length <= 35) << offset << " " << length;
      std::vector<std::byte*> got;
      for (size_t p = 1; p < out.size(); ++p) {
        for (size_t i = 0; i < out[p].iov_len; ++i) {
          got.push_back(static_cast<std::byte*>(out[p].iov_base) + i);
        }
      }
      const std::vector<std::byte*> want(all.begin() + (ok ? offset : 0),
                                         all.begin() + (ok ? offset + length : 0));
      ASSERT_EQ(got, want) << offset << " " << length;
    }
  }
  absl::InlinedVector<iovec, 4> out;
  EXPECT_FALSE(AppendSlice(pieces, UINT64_MAX, 2, out));
  EXPECT_FALSE(AppendSlice(pieces, 2, UINT64_MAX, out));
}

// ---- Matching

TEST(Store, MatchTellsTheLongestPrefixWithSizes) {
  TestStore t(8 * kMiB);
  std::vector<ChunkKey> keys;
  for (uint64_t i = 0; i < 10; ++i) keys.push_back(TestKey(i));
  for (const uint64_t i : {0, 1, 2, 4, 5}) ASSERT_TRUE(t.Put(keys[i], 100 + i).ok());
  const KeyGroup group{t.terms, keys, 0};
  const auto match = t.store->Match({&group, 1});
  ASSERT_TRUE(match.ok());
  EXPECT_EQ((*match).matched, 3u);
  ASSERT_EQ((*match).groups.size(), 1u);
  EXPECT_EQ((*match).groups[0].first, 0u);
  EXPECT_THAT((*match).groups[0].bytes, ElementsAre(100, 101, 102));
  EXPECT_EQ((*match).reservation, ReservationId::kNone);
  const ChunkStoreStats stats = t.store->Stats();
  EXPECT_EQ(stats.matches, 1u);
  EXPECT_EQ(stats.match_keys, 10u);
  EXPECT_EQ(stats.matched_keys, 3u);
}

TEST(Store, MatchOfAHybridModelTakesAllItsGroupsAtOnce) {
  TestStore t(8 * kMiB);
  const NamespaceId sliding_ns = t.OpenNamespace("sliding");
  std::vector<ChunkKey> full, sliding;
  for (uint64_t i = 0; i < 6; ++i) full.push_back(TestKey(i)), sliding.push_back(TestKey(100 + i));
  for (uint64_t i = 0; i < 6; ++i) ASSERT_TRUE(t.Put(full[i], 10).ok());
  const auto put_sliding = [&](uint64_t i) {
    auto [chunk, value] = t.Make(sliding[i], 20 + i);
    chunk.ns = sliding_ns;
    auto pending = t.store->Begin(std::move(chunk));
    Scatter(value, pending->pieces());
    ASSERT_TRUE(t.store->Commit(std::move(pending).value()).ok());
  };
  put_sliding(2);
  put_sliding(3);
  put_sliding(5);
  const std::vector<KeyGroup> groups = {{t.terms, full, 0}, {{.ns = sliding_ns}, sliding, 2}};
  auto match = t.store->Match(groups);
  ASSERT_TRUE(match.ok());
  EXPECT_EQ((*match).matched, 4u);
  EXPECT_EQ((*match).groups[0].bytes.size(), 4u);
  EXPECT_EQ((*match).groups[1].first, 2u);
  EXPECT_THAT((*match).groups[1].bytes, ElementsAre(22, 23));
  put_sliding(4);
  match = t.store->Match(groups);
  EXPECT_EQ((*match).matched, 6u);
  EXPECT_THAT((*match).groups[1].bytes, ElementsAre(24, 25));
  ASSERT_TRUE(t.store->Drop(full[0], t.ns).ok());
  EXPECT_EQ(t.store->Match(groups)->matched, 0u);
}

TEST(Store, MatchRefusesWhatItCannotMean) {
  ChunkStoreOptions options = TestStore::Options(kMiB);
  options.max_match_keys = 10;
  TestStore t(options);
  const std::vector<ChunkKey> five(5, TestKey(1)), six(6, TestKey(1)), none;
  const std::vector<KeyGroup> uneven = {{t.terms, five, 0}, {t.terms, six, 0}};
  EXPECT_EQ(t.store->Match(uneven).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(t.store->Match({}).status().code(), Code::kInvalidArgument);
  const std::vector<KeyGroup> many = {{t.terms, six, 0}, {t.terms, six, 0}};
  EXPECT_EQ(t.store->Match(many).status().code(), Code::kTooLarge);
  const std::vector<KeyGroup> empty = {{t.terms, none, 0}, {t.terms, none, 3}};
  EXPECT_EQ(t.store->Match(empty)->matched, 0u);
  const std::vector<KeyGroup> one = {{t.terms, five, 0}};
  EXPECT_EQ(t.store->Match(one, ReserveRequest{OwnerId{1}, Duration(0)}).status().code(),
            Code::kInvalidArgument);
}

// ---- Namespaces and options

TEST(Store, NamespacesAreOpenedOnceListedAndBounded) {
  ChunkStoreOptions options = TestStore::Options(kMiB);
  options.max_namespaces = 3;
  options.max_namespace_bytes = 20;
  TestStore t(options);  // Has opened "first".
  const auto held = t.HoldNamespace("first");
  const Fingerprint print = Digest256::Sha256({AsBytes("second")});
  EXPECT_EQ(t.store->FindNamespace(print), NamespaceId::kNone);
  const NamespaceId second = t.OpenNamespace("second");
  const auto held_too = t.HoldNamespace("second");
  EXPECT_EQ(held_too.id, second);
  EXPECT_EQ(t.store->FindNamespace(print), second);
  const auto too_long = t.store->OpenNamespace(TestKey(1), AsBytes("ten bytes."));
  EXPECT_EQ(too_long.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(too_long.status().message(), HasSubstr("max_namespace_bytes"));
  const auto third = t.store->HoldNamespace(TestKey(1), AsBytes("3rd"));
  EXPECT_TRUE(third.ok());
  const auto too_many = t.store->OpenNamespace(TestKey(2), AsBytes(""));
  EXPECT_EQ(too_many.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(too_many.status().message(), HasSubstr("3 namespaces"));
  ASSERT_TRUE(t.Put(TestKey(1), 100).ok());
  const auto list = t.store->ListNamespaces();
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0].chunks, 1u);
  EXPECT_EQ(list[0].bytes, 100u);
  EXPECT_EQ(AsText(list[1].descriptor), "second");
  EXPECT_FALSE(t.store->GetNamespace(NamespaceId{4}).has_value());
  EXPECT_EQ(t.store->GetNamespace(second)->fingerprint, print);
}

TEST(Store, AFullTableReusesThePlaceOfTheLeastRecentlyUsedNamespaceThatNobodyNeeds) {
  ChunkStoreOptions options = TestStore::Options(kMiB);
  options.max_namespaces = 5;
  TestStore t(options);
  ASSERT_TRUE(t.Put(TestKey(1), 100).ok());  // In "first".
  auto held = t.HoldNamespace("held");
  const auto put_in = [&](NamespaceId ns, uint64_t key) {
    auto [chunk, value] = t.Make(TestKey(key), 50);
    chunk.ns = ns;
    auto pending = t.store->Begin(std::move(chunk));
    if (pending.ok()) Scatter(value, pending->pieces());
    return pending;
  };
  const NamespaceId pending_ns = t.OpenNamespace("pending"), read_ns = t.OpenNamespace("read");
  std::optional<PendingChunk> pending = put_in(pending_ns, 2).value();
  ASSERT_TRUE(t.store->Commit(put_in(read_ns, 3).value()).ok());
  auto reading = t.store->Find(TestKey(3), {.ns = read_ns}).value();
  ASSERT_TRUE(t.store->Drop(TestKey(3), read_ns).ok());

  // The fifth place is all there is.
  const NamespaceId idle = t.OpenNamespace("idle");
  const NamespaceId next = t.OpenNamespace("next");
  EXPECT_NE(next, idle);
  EXPECT_EQ(t.store->FindNamespace(Digest256::Sha256({AsBytes("idle")})), NamespaceId::kNone);
  // An id that is out of date is nobody's, not the successor's.
  EXPECT_EQ(put_in(idle, 4).status().code(), Code::kInvalidArgument);
  ASSERT_TRUE(t.store->Commit(put_in(next, 5).value()).ok());
  EXPECT_EQ(t.store->Find(TestKey(5), {.ns = idle}).status().code(), Code::kFormatMismatch);
  EXPECT_EQ(t.store->DropNamespace(idle), 0u);
  const Fingerprint wanted = Digest256::Sha256({AsBytes("wanted")});
  const auto open = [&] { return t.store->OpenNamespace(wanted, AsBytes("wanted")); };
  EXPECT_EQ(open().status().code(), Code::kResourceExhausted);
  EXPECT_THAT(open().status().message(), HasSubstr("5 namespaces are in use"));

  // Each of them makes room as soon as nothing needs it.
  const auto makes_room = [&](NamespaceId gone) {
    const auto opened = open();
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    EXPECT_FALSE(t.store->GetNamespace(gone).has_value());
    return t.store->Commit(put_in(*opened, 6).value()).ok() &&
           t.store->Drop(TestKey(6), *opened).ok();
  };
  reading = ChunkRef();
  EXPECT_TRUE(makes_room(read_ns));
  pending.reset();
  t.OpenNamespace("other");  // Not in the place of "wanted", which was used later.
  EXPECT_FALSE(t.store->GetNamespace(pending_ns).has_value());
  EXPECT_NE(t.store->FindNamespace(wanted), NamespaceId::kNone);
  // A namespace that comes back is a new one.
  EXPECT_NE(t.OpenNamespace("read"), read_ns);
  EXPECT_EQ(t.store->FindNamespace(wanted), NamespaceId::kNone);
  EXPECT_TRUE(t.store->GetNamespace(held.id).has_value());
  EXPECT_EQ(t.store->GetNamespace(t.ns)->chunks, 1u);
}

TEST(Store, ManyThreadsOpenAndUseMoreNamespacesThanThereArePlaces) {
  ChunkStoreOptions options = TestStore::Options(8 * kMiB);
  options.max_namespaces = 6;
  TestStore t(options);
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&t, thread] {
      for (uint64_t i = 0; i < 500; ++i) {
        const std::string name = std::to_string((thread * 7 + i) % 40);
        const auto held = t.HoldNamespace(name);
        auto [chunk, value] = t.Make(TestKey(thread * 1000 + i), 50);
        chunk.ns = held.id;
        auto pending = t.store->Begin(std::move(chunk));
        ASSERT_TRUE(pending.ok()) << pending.status().ToString();
        Scatter(value, pending->pieces());
        ASSERT_TRUE(t.store->Commit(std::move(pending).value()).ok());
        const auto found = t.store->Find(TestKey(thread * 1000 + i), {.ns = held.id});
        ASSERT_TRUE(found.ok()) << found.status().ToString();
        ASSERT_EQ(found->ns(), held.id);
        ASSERT_TRUE(t.store->Drop(TestKey(thread * 1000 + i), held.id).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(t.store->ListNamespaces().size(), 6u);
  EXPECT_EQ(t.store->CheckInvariants(), "");
}

TEST(Store, OptionsThatMakeNoSenseAreNamed) {
  const auto error_of = [](auto change) {
    ChunkStoreOptions options = TestStore::Options(kMiB);
    change(options);
    const auto store = ChunkStore::Create(options);
    EXPECT_EQ(store.status().code(), Code::kInvalidArgument);
    return store.status().message();
  };
  using O = ChunkStoreOptions;
  EXPECT_THAT(error_of([](O& o) { o.arena.bytes = 0; }), HasSubstr("arena.bytes"));
  EXPECT_THAT(error_of([](O& o) { o.max_chunk_bytes = kMiB + 1; }), HasSubstr("max_chunk_bytes"));
  EXPECT_THAT(error_of([](O& o) { o.granule_bytes = 100; }), HasSubstr("granule_bytes is 100"));
  EXPECT_THAT(error_of([](O& o) { o.max_extents = 0; }), HasSubstr("max_extents"));
  EXPECT_THAT(error_of([](O& o) { o.headroom = -0.1; }), HasSubstr("headroom"));
  EXPECT_THAT(error_of([](O& o) { o.max_pending = 1.1; }), HasSubstr("max_pending"));
  EXPECT_THAT(error_of([](O& o) { o.max_pinned = NAN; }), HasSubstr("max_pinned"));
  EXPECT_THAT(error_of([](O& o) { o.max_reservation_ttl = Duration(0); }), HasSubstr("ttl"));
  EXPECT_THAT(error_of([](O& o) { o.max_pin_ttl = Duration::max(); }), HasSubstr("ttl"));
  EXPECT_THAT(error_of([](O& o) { o.index_shards = 3; }), HasSubstr("index_shards"));
  EXPECT_THAT(error_of([](O& o) { o.clock = nullptr; }), HasSubstr("clock"));
}

TEST(Store, OneThatStartsWithDefaultsOnlyNeedsASize) {
  ChunkStoreOptions options;
  options.arena.bytes = 4 * kMiB;
  const auto store = ChunkStore::Create(options);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_EQ((*store)->max_chunk_bytes(), kMiB);
  EXPECT_EQ((*store)->arena().size(), 4 * kMiB);
  EXPECT_GE((*store)->arena_fd(), 0);
}

TEST(Store, DroppingUnlinksPinnedOrNotAndClearEndsEverything) {
  TestStore t(8 * kMiB);
  const NamespaceId other = t.OpenNamespace("other");
  for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(t.Put(TestKey(i), 1000).ok());
  auto [foreign, value] = t.Make(TestKey(100), 50);
  foreign.ns = other;
  auto pending = t.store->Begin(std::move(foreign));
  Scatter(value, pending->pieces());
  ASSERT_TRUE(t.store->Commit(std::move(pending).value()).ok());

  ASSERT_TRUE(t.store->Pin(TestKey(0), t.terms, std::chrono::hours(1)).ok());
  EXPECT_TRUE(t.store->Drop(TestKey(0), t.ns).ok());
  EXPECT_EQ(t.store->Drop(TestKey(0), t.ns).code(), Code::kMiss);
  EXPECT_EQ(t.store->Stats().pinned_chunks, 0u);
  EXPECT_EQ(t.store->DropNamespace(NamespaceId::kNone), 0u);
  EXPECT_EQ(t.store->DropNamespace(t.ns), 9u);
  EXPECT_EQ(t.store->Stats().chunks, 1u);
  EXPECT_TRUE(t.Put(TestKey(0), 1000).ok());
  ASSERT_TRUE(t.store->Pin(TestKey(0), t.terms, std::chrono::hours(1)).ok());
  const std::vector keys = {TestKey(0)};
  const KeyGroup group{t.terms, keys, 0};
  ASSERT_NE(
      t.store->Match({&group, 1}, ReserveRequest{OwnerId{1}, std::chrono::minutes(1)})->reservation,
      ReservationId::kNone);
  EXPECT_EQ(t.store->Clear(), 2u);
  t.ExpectEmpty();
  t.ExpectCountersAddUp();
}

TEST(StoreDeathTest, AReaderThatOutlivesTheStoreStopsTheProcess) {
  EXPECT_DEATH(
      {
        auto t = std::make_unique<TestStore>(kMiB);
        (void)t->Put(TestKey(1), 100);
        auto found = t->store->Find(TestKey(1), t->terms);
        t->store.reset();
      },
      "outlived");
}

}  // namespace
}  // namespace penstock
