// ChunkRef and PendingChunk: the two ways to hold the bytes of a chunk.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_CHUNK_REF_H_
#define PENSTOCK_SERVER_DAEMON_STORE_CHUNK_REF_H_

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "common/base/bytes.h"
#include "common/format/manifest.h"
#include "common/keys/chunk_key.h"
#include "server/daemon/store/store_types.h"

namespace penstock {

class ChunkStore;
struct ChunkEntry;

// Keeps one committed chunk readable: its bytes neither change nor are reused while any ChunkRef to
// it lives, whatever happens to the key meanwhile (eviction, drop, replacement). Cheap to copy.
//
// Thread safety: like std::shared_ptr. Must not outlive the ChunkStore. An empty one (moved from or
// default) has no chunk; only operator bool, assignment and destruction are allowed on it.
class ChunkRef {
 public:
  ChunkRef() = default;
  ChunkRef(const ChunkRef& other);
  ChunkRef(ChunkRef&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}
  ChunkRef& operator=(ChunkRef other) noexcept {
    std::swap(entry_, other.entry_);
    return *this;
  }
  ~ChunkRef();

  explicit operator bool() const { return entry_ != nullptr; }
  // Tells this chunk from all others while a ChunkRef to it lives.
  const void* id() const { return entry_; }
  // Whether a reservation or a pin, of whomever, keeps it from eviction at this moment.
  bool kept() const;
  const ChunkKey& key() const;
  NamespaceId ns() const;
  const std::optional<ChunkKey>& parent() const;
  // Payload bytes: the stored bytes of all segments, 0 for an empty chunk.
  uint64_t bytes() const;
  const Manifest& manifest() const;
  // manifest().Encode(), made once: ready to be sent.
  ByteSpan encoded_manifest() const;
  // Where the payload lies in the arena, in order; adds up to bytes(). Read only.
  std::span<const iovec> pieces() const;

  friend bool operator==(const ChunkRef& a, const ChunkRef& b) { return a.entry_ == b.entry_; }

 private:
  friend class ChunkStore;
  friend class HoldTable;
  friend class ChunkIndex;
  // Takes over one reference.
  explicit ChunkRef(ChunkEntry* entry) : entry_(entry) {}
  ChunkEntry* entry_ = nullptr;
};

// Space for a chunk that is being written; nobody else sees it until ChunkStore::Commit().
// Destroying it without a commit gives the space back. Move-only, one thread at a time; must not
// outlive the ChunkStore. After a move only assignment and destruction are allowed.
//
// Whoever writes into pieces() must have stopped before the PendingChunk is committed or destroyed.
class PendingChunk {
 public:
  PendingChunk(PendingChunk&& other) noexcept;
  PendingChunk& operator=(PendingChunk&& other) noexcept;
  ~PendingChunk();

  const ChunkKey& key() const;
  uint64_t bytes() const;
  const Manifest& manifest() const;
  // Where the payload belongs, in order; adds up to bytes(). Empty for an empty chunk. The memory
  // holds whatever was there before.
  std::span<const iovec> pieces() const;

 private:
  friend class ChunkStore;
  PendingChunk(ChunkEntry* entry, OwnerId owner, bool replace)
      : entry_(entry), owner_(owner), replace_(replace) {}
  ChunkEntry* entry_;
  OwnerId owner_;
  bool replace_;
};

// Appends to `out` the part [offset, offset + length) of `pieces`. False, and `out` as before, if
// `pieces` are shorter than that.
bool AppendSlice(std::span<const iovec> pieces, uint64_t offset, uint64_t length,
                 absl::InlinedVector<iovec, 4>& out);

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_CHUNK_REF_H_
