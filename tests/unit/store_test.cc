// ChunkStore call by call: what each method promises in its header.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/daemon/store/chunk_store.h"
#include "tests/unit/store_testing.h"

namespace penstock {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

TEST(Store, FindsWhatWasCommittedAndNothingElse) {
  TestStore t(8 * kMiB);
  ASSERT_TRUE(t.Put(TestKey(1), 100 * kKiB, {.version = 7}).ok());
  EXPECT_EQ(t.Get(TestKey(1)), 7u);
  EXPECT_EQ(t.store->Find(TestKey(2), t.terms).status().code(), Code::kMiss);
  t.ExpectCountersAddUp();
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
  EXPECT_EQ(t.store->Stats().failed[static_cast<size_t>(Code::kChecksumMismatch)], 1u);
  t.ExpectEmpty();
  t.ExpectCountersAddUp();
}

}  // namespace
}  // namespace penstock
