// What the tests of the store share: a clock that they set, values that describe themselves, and a
// store with short calls.

#ifndef PENSTOCK_TESTS_UNIT_STORE_TESTING_H_
#define PENSTOCK_TESTS_UNIT_STORE_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/format/checksum.h"
#include "server/daemon/store/chunk_store.h"

namespace penstock {

// Time that moves when the test says so.
class TestClock {
 public:
  MonotonicTime Now() const { return MonotonicTime(Duration(nanos_.load())); }
  void Advance(Duration by) { nanos_ += by.count(); }

 private:
  std::atomic<int64_t> nanos_{1'000'000'000};
};

inline ChunkKey TestKey(uint64_t number) {
  return Digest256::Sha256({AsBytes("key"), AsBytes(std::to_string(number))});
}

// A value whose every 64-byte line says whose it is: key, version, line number, length, and a
// checksum of the line. Reading lines of two values, or of another one, cannot go unnoticed.
struct ValueLine {
  uint64_t key, version, number, length;
  uint64_t padding[3];
  uint64_t check;
};
static_assert(sizeof(ValueLine) == 64);

inline std::vector<std::byte> MakeValue(const ChunkKey& key, uint64_t version, uint64_t length) {
  std::vector<std::byte> value((length + 63) / 64 * 64);
  for (uint64_t at = 0; at < length; at += 64) {
    ValueLine line{key.Word(), version, at / 64, length, {}, 0};
    line.check = PlainChecksum({reinterpret_cast<std::byte*>(&line), 56});
    std::memcpy(value.data() + at, &line, sizeof(line));
  }
  value.resize(length);
  return value;
}

inline std::vector<std::byte> Gather(std::span<const iovec> pieces) {
  std::vector<std::byte> bytes;
  for (const iovec& piece : pieces) {
    const auto* const from = static_cast<const std::byte*>(piece.iov_base);
    bytes.insert(bytes.end(), from, from + piece.iov_len);
  }
  return bytes;
}

inline void Scatter(const std::vector<std::byte>& bytes, std::span<const iovec> pieces) {
  size_t at = 0;
  for (const iovec& piece : pieces) {
    std::memcpy(piece.iov_base, bytes.data() + at, piece.iov_len);
    at += piece.iov_len;
  }
  ASSERT_EQ(at, bytes.size());
}

// The version of the value, or nothing if the bytes are not one whole value of the key.
inline std::optional<uint64_t> VersionOf(const ChunkKey& key, const std::vector<std::byte>& bytes) {
  if (bytes.empty()) return 0;
  ValueLine first{};
  std::memcpy(&first, bytes.data(), std::min<size_t>(bytes.size(), sizeof(first)));
  if (bytes != MakeValue(key, first.version, bytes.size())) return std::nullopt;
  return first.version;
}
inline std::optional<uint64_t> VersionOf(const ChunkRef& chunk) {
  return VersionOf(chunk.key(), Gather(chunk.pieces()));
}

struct PutOptions {
  uint64_t version = 1;
  std::optional<ChunkKey> parent;
  bool replace = false;
  OwnerId owner = OwnerId::kDaemon;
  uint32_t flags = 0;
  uint64_t tag = 0;
};

// A store with one namespace open.
class TestStore {
 public:
  static ChunkStoreOptions Options(uint64_t arena_bytes) {
    ChunkStoreOptions options;
    options.arena.bytes = arena_bytes;
    options.arena.pages = PageKind::kOrdinary;
    options.max_chunk_bytes = arena_bytes;
    options.headroom = 0;
    options.max_pending = 1;
    options.max_pending_per_owner = 1;
    options.max_reserved = 1;
    options.max_pinned = 1;
    return options;
  }

  explicit TestStore(uint64_t arena_bytes) : TestStore(Options(arena_bytes)) {}
  explicit TestStore(ChunkStoreOptions options) {
    options.clock = [this] { return clock.Now(); };
    auto made = ChunkStore::Create(options);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    store = std::move(made).value();
    ns = OpenNamespace("first");
    terms = {.ns = ns};
  }

  HeldNamespace HoldNamespace(std::string_view name) {
    return store->HoldNamespace(Digest256::Sha256({AsBytes(name)}), AsBytes(name)).value();
  }
  NamespaceId OpenNamespace(std::string_view name) {
    return store->OpenNamespace(Digest256::Sha256({AsBytes(name)}), AsBytes(name)).value();
  }

  // A chunk to store and the bytes that belong into it.
  std::pair<NewChunk, std::vector<std::byte>> Make(const ChunkKey& key, uint64_t bytes,
                                                   const PutOptions& put = {}) const {
    std::vector<std::byte> value = MakeValue(key, put.version, bytes);
    NewChunk chunk;
    chunk.key = key;
    chunk.ns = ns;
    chunk.manifest = Manifest::Plain(bytes, ChunkChecksum(key, value));
    chunk.manifest.flags = put.flags;
    chunk.manifest.tag = put.tag;
    chunk.parent = put.parent;
    chunk.replace = put.replace;
    chunk.owner = put.owner;
    return {std::move(chunk), std::move(value)};
  }

  // Begin() and the bytes, no commit.
  Result<PendingChunk> Begin(const ChunkKey& key, uint64_t bytes, const PutOptions& put = {}) {
    auto [chunk, value] = Make(key, bytes, put);
    auto pending = store->Begin(std::move(chunk));
    if (pending.ok()) Scatter(value, pending->pieces());
    return pending;
  }

  Status Put(const ChunkKey& key, uint64_t bytes, const PutOptions& put = {}) {
    auto pending = Begin(key, bytes, put);
    if (!pending.ok()) return pending.status();
    return store->Commit(std::move(pending).value());
  }

  // The version of what is stored; throws the test out when a hit has wrong bytes.
  std::optional<uint64_t> Get(const ChunkKey& key) {
    auto found = store->Find(key, terms);
    if (!found.ok()) return std::nullopt;
    const auto version = VersionOf(*found);
    EXPECT_TRUE(version.has_value()) << "wrong bytes under " << key.ToShortHex();
    return version;
  }

  bool Has(const ChunkKey& key) { return store->Stat(key, terms).ok(); }

  uint32_t Match(const std::vector<ChunkKey>& keys) {
    const KeyGroup group{terms, keys, 0};
    return store->Match({&group, 1}).value().matched;
  }

  // What must hold whenever nothing is being called.
  void ExpectCountersAddUp() const {
    const ChunkStoreStats s = store->Stats();
    uint64_t refused = 0, failed = 0;
    for (size_t code = 0; code < kCodeCount; ++code) {
      refused += s.refused[code];
      failed += s.failed[code];
    }
    EXPECT_EQ(s.begun, s.committed + s.exists + refused + failed + s.pending_chunks);
    EXPECT_EQ(s.committed, s.chunks + s.evicted_chunks + s.dropped_chunks + s.replaced_chunks);
    EXPECT_EQ(s.committed_bytes,
              s.chunk_bytes + s.evicted_bytes + s.dropped_bytes + s.replaced_bytes);
    EXPECT_EQ(s.finds, s.hits + s.misses + s.mismatches);
    EXPECT_EQ(s.arena_bytes, s.used_bytes + s.free_bytes);
    EXPECT_EQ(s.reservations_made, s.reservations_released + s.reservations_expired +
                                       s.reservations_revoked + s.reservations);
    EXPECT_GE(s.used_bytes, s.chunk_bytes + s.pending_bytes + s.detached_bytes);
    uint64_t chunks = 0, bytes = 0;
    for (const NamespaceInfo& info : store->ListNamespaces()) {
      chunks += info.chunks;
      bytes += info.bytes;
    }
    EXPECT_EQ(chunks, s.chunks);
    EXPECT_EQ(bytes, s.chunk_bytes);
  }

  // Everything is given back.
  void ExpectEmpty() const {
    const ChunkStoreStats s = store->Stats();
    EXPECT_EQ(s.used_bytes, 0u);
    EXPECT_EQ(s.free_bytes, s.arena_bytes);
    EXPECT_EQ(s.free_blocks, 1u);
    EXPECT_EQ(s.chunks, 0u);
    EXPECT_EQ(s.chunk_bytes, 0u);
    EXPECT_EQ(s.pending_chunks, 0u);
    EXPECT_EQ(s.pending_bytes, 0u);
    EXPECT_EQ(s.detached_chunks, 0u);
    EXPECT_EQ(s.detached_bytes, 0u);
    EXPECT_EQ(s.reservations, 0u);
    EXPECT_EQ(s.reserved_chunks, 0u);
    EXPECT_EQ(s.reserved_bytes, 0u);
    EXPECT_EQ(s.pinned_chunks, 0u);
    EXPECT_EQ(s.pinned_bytes, 0u);
    EXPECT_EQ(s.metadata_bytes, 0u);
  }

  TestClock clock;
  std::unique_ptr<ChunkStore> store;
  NamespaceId ns = NamespaceId::kNone;
  ReadTerms terms;
};

}  // namespace penstock

#endif  // PENSTOCK_TESTS_UNIT_STORE_TESTING_H_
