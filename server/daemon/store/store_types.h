// The small types of the store's interface.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_STORE_TYPES_H_
#define PENSTOCK_SERVER_DAEMON_STORE_STORE_TYPES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/deadline.h"
#include "common/base/status.h"
#include "common/format/manifest.h"
#include "common/keys/chunk_key.h"

namespace penstock {

// A namespace that this store has opened. 0 is no namespace. Never reused within one store, not
// even when another namespace got the place of this one: an id that is out of date finds nothing.
enum class NamespaceId : uint64_t { kNone = 0 };
// A namespace that keeps its place in the store for as long as `hold` lives.
struct HeldNamespace {
  NamespaceId id = NamespaceId::kNone;
  std::shared_ptr<const void> hold;
};
// Whoever holds reservations and pending chunks: a session. 0 is the daemon itself.
enum class OwnerId : uint64_t { kDaemon = 0 };
// Random, so that it cannot be guessed. 0 is no reservation.
enum class ReservationId : uint64_t { kNone = 0 };

// What a reader demands of a chunk besides its key. Whatever differs is kFormatMismatch.
struct ReadTerms {
  NamespaceId ns = NamespaceId::kNone;
  bool want_exact = true;  // Refuses lossy and query-dependent chunks.
  // Must equal the tag of the manifest, unless that is 0. Nothing: any tag will do, for those who
  // handle chunks without reading them.
  std::optional<uint64_t> tag = 0;
};

// A chunk to store.
struct NewChunk {
  ChunkKey key;
  NamespaceId ns = NamespaceId::kNone;
  Manifest manifest;
  // The chunk before this one, if this one is useless without it: it is then evicted after this
  // one. It need not be in the store, now or ever. Leave it out for chunks that stand alone (named
  // objects, groups with a sliding window).
  std::optional<ChunkKey> parent;
  // Take the place of a committed chunk of the same key instead of yielding to it.
  bool replace = false;
  OwnerId owner = OwnerId::kDaemon;
};

// One KV group of a Match().
struct KeyGroup {
  ReadTerms terms;
  std::span<const ChunkKey> keys;  // In prompt order; the same number in every group.
  // 0: full attention, every chunk of the prefix is needed. Otherwise only the last `window`
  // chunks of it are.
  uint32_t window = 0;
};

struct ReserveRequest {
  OwnerId owner = OwnerId::kDaemon;
  Duration ttl{};
};

struct MatchResult {
  struct Group {
    uint32_t first = 0;           // The chunks [first, matched) of the group are needed...
    std::vector<uint64_t> bytes;  // ...and these are their sizes.
  };
  // The longest prefix, in chunks, that is stored whole: in every full group the keys [0, matched)
  // are present, in every sliding group the keys [max(0, matched - window), matched).
  uint32_t matched = 0;
  std::vector<Group> groups;  // As many as were asked for, in the same order.

  // If a reservation was asked for and matched > 0: its id, or why there is none: kBusy (the
  // budget for reservations is used up; the match itself holds without promise).
  ReservationId reservation = ReservationId::kNone;
  Status reserve_status;
  Duration reservation_ttl{};  // What was granted.
};

struct ChunkInfo {
  ChunkKey key;
  NamespaceId ns = NamespaceId::kNone;
  std::optional<ChunkKey> parent;
  uint64_t bytes = 0;
  uint32_t flags = 0;  // ManifestFlags.
  uint64_t tag = 0;
  uint32_t token_count = 0;
  uint32_t extents = 0;
  uint32_t readers = 0;   // Reads and reservations that hold it now.
  uint32_t children = 0;  // Chunks in the store that name it as their parent.
  Duration idle{};        // Since it was last stored, found, matched or touched.
  bool pinned = false;
  Duration pin_left{};
  std::vector<std::byte> manifest;  // Encoded.
};

struct NamespaceInfo {
  NamespaceId id = NamespaceId::kNone;
  Fingerprint fingerprint;
  std::vector<std::byte> descriptor;  // NamespaceDescriptor::Encode()
  uint64_t chunks = 0;                // Committed and not yet evicted, dropped or replaced.
  uint64_t bytes = 0;                 // Of those, payload.
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_STORE_TYPES_H_
