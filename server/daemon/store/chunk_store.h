// ChunkStore: the dram tier of one daemon. Committed chunks in one arena, found by key, evicted by
// a prefix-aware policy when space is needed. No network, no threads, no disk.
//
// Life of a chunk: Begin() grants space (evicting if need be), the caller fills it, Commit() checks
// the bytes and publishes them atomically; from then on Find() and Match() see it, until it is
// evicted, dropped or replaced, which only unlinks it: the memory is reused when the last ChunkRef
// to it is gone.
//
// Chunks are write-once: the first commit of a key wins, a later one gets kAlreadyExists and leaves
// the store as it was, unless it asked to replace.
//
// Thread safety: every method may be called from any thread, concurrently. None blocks on anything
// but short internal locks; Begin() may evict, Commit() reads the whole payload.
// The store must outlive every ChunkRef and PendingChunk; its destructor aborts otherwise.

#ifndef PENSTOCK_SERVER_DAEMON_STORE_CHUNK_STORE_H_
#define PENSTOCK_SERVER_DAEMON_STORE_CHUNK_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/keys/chunk_key.h"
#include "server/daemon/store/chunk_ref.h"
#include "server/daemon/store/store_options.h"
#include "server/daemon/store/store_stats.h"
#include "server/daemon/store/store_types.h"

namespace penstock {

class ChunkStore {
 public:
  // Errors: kInvalidArgument (an option), kResourceExhausted (memory, naming the limit, what was
  // wanted and what is allowed).
  static Result<std::unique_ptr<ChunkStore>> Create(const ChunkStoreOptions& options);
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // ---- Namespaces -------------------------------------------------------------------------------

  // The namespace, kept open by the answer; opened again, the same id. `descriptor` is kept once,
  // for people; that it belongs to the fingerprint is for the caller to check. Where there are too
  // many, one that nobody holds and that has no chunk (committed, pending or being read) makes
  // room, the one least recently used first: there is nothing to lose. Errors: kResourceExhausted
  // (too many of them, or too large together, and all are in use).
  Result<HeldNamespace> HoldNamespace(const Fingerprint& fingerprint, ByteSpan descriptor);
  // Without the hold: it stays open until its place is needed.
  Result<NamespaceId> OpenNamespace(const Fingerprint& fingerprint, ByteSpan descriptor);
  // kNone if it is not open.
  NamespaceId FindNamespace(const Fingerprint& fingerprint) const;
  std::optional<NamespaceInfo> GetNamespace(NamespaceId ns) const;
  std::vector<NamespaceInfo> ListNamespaces() const;

  // ---- Writers ----------------------------------------------------------------------------------

  // Grants space for one chunk.
  // Errors: kAlreadyExists   a committed chunk is there (and replace was not asked for);
  //         kTooLarge        more than max_chunk_bytes;
  //         kAllPinned       all that is left is pinned, reserved or in use;
  //         kBusy            too many bytes are pending (of this owner, or in all), or writes in
  //                          progress hold the space: try again;
  //         kFormatMismatch  the key is taken by a chunk of another namespace;
  //         kInvalidArgument unknown namespace, or a chunk that is its own parent.
  Result<PendingChunk> Begin(NewChunk chunk);
  // Checks the payload against the manifest's checksums and publishes the chunk. Whatever the
  // answer, `chunk` is used up.
  // Errors: kAlreadyExists   another one committed this key first: the space is given back;
  //         kChecksumMismatch the bytes are not those of the manifest: the space is given back;
  //         kFormatMismatch  the key was taken by a chunk of another namespace.
  Status Commit(PendingChunk chunk);

  // ---- Readers ----------------------------------------------------------------------------------

  // The chunk, kept readable until the ChunkRef is gone. Refreshes it for eviction.
  // Errors: kMiss, kFormatMismatch (another namespace or tag; lossy or query-dependent for a reader
  // that wants exact bytes).
  Result<ChunkRef> Find(const ChunkKey& key, const ReadTerms& terms);
  // Find() for a list in prompt order: one result a key, in the same order. Refreshes only the keys
  // before the first that is not found, the head as the most recent.
  std::vector<Result<ChunkRef>> FindMany(std::span<const ChunkKey> keys, const ReadTerms& terms);

  // The longest stored prefix; see KeyGroup and MatchResult. Refreshes exactly the chunks of the
  // answer. With `reserve` they stay until the reservation ends: by ReleaseReservation(), by
  // ReleaseOwner(), by its time (by the monotonic clock). A reserved chunk is never evicted; an
  // explicit Drop() or replacement still takes it away (a later Find() says kMiss).
  // Errors: kInvalidArgument (groups of different lengths, no group), kTooLarge (too many keys).
  Result<MatchResult> Match(std::span<const KeyGroup> groups,
                            const std::optional<ReserveRequest>& reserve = std::nullopt);

  // What is known of a chunk. Refreshes nothing. Errors: as Find().
  Result<ChunkInfo> Stat(const ChunkKey& key, const ReadTerms& terms);

  // ---- Retention --------------------------------------------------------------------------------

  // Ends a reservation. Errors: kFenced (no such reservation of this owner: released twice,
  // expired, or never made).
  Status ReleaseReservation(ReservationId id, OwnerId owner);
  // Gives the reservation `ttl` from now, cut to the maximum. Errors: kFenced.
  Status RenewReservation(ReservationId id, OwnerId owner, Duration ttl);
  // Ends all reservations of an owner that is gone. Returns how many.
  size_t ReleaseOwner(OwnerId owner);

  // Keeps a chunk from eviction for `ttl`, cut to the maximum. One pin a key: pinning again sets
  // the time anew. A pin belongs to the key, outlives sessions, and passes on to a replacement.
  // Errors: as Find(); kBusy (the budget for pins is used up); kInvalidArgument (ttl <= 0).
  Status Pin(const ChunkKey& key, const ReadTerms& terms, Duration ttl);
  // Errors: as Find(); kFenced (not pinned, or no longer).
  Status Unpin(const ChunkKey& key, const ReadTerms& terms);

  // Refreshes the keys before the first that is not found, the head as the most recent. Returns how
  // many.
  size_t Touch(std::span<const ChunkKey> keys, const ReadTerms& terms);

  // Unlinks the chunk, pinned or not. Errors: kMiss, kFormatMismatch (of another namespace).
  Status Drop(const ChunkKey& key, NamespaceId ns);
  // The chunk without a trace: neither counted nor refreshed. Errors: as Find().
  Result<ChunkRef> Peek(const ChunkKey& key, const ReadTerms& terms);
  // Compares a chunk's bytes with its checksums, and unlinks it (pinned or not) if they differ, so
  // that the next store repairs it. Takes time in proportion to the bytes. Errors:
  // kChecksumMismatch (it was damaged, and will not be found any more).
  Status DropIfDamaged(const ChunkRef& chunk);
  // Unlinks all chunks of a namespace; returns how many. The namespace stays open.
  size_t DropNamespace(NamespaceId ns);
  // Unlinks everything, ends all pins and reservations; returns how many chunks.
  size_t Clear();

  struct Maintenance {
    size_t evicted = 0;  // Chunks.
    size_t expired_reservations = 0;
    size_t expired_pins = 0;
    bool more = false;  // Bounded work was done and some is left: call again soon.
  };
  // Ends what has expired and evicts until the headroom is free. To be called every 100 ms or so,
  // from any one thread: then stores seldom have to evict themselves.
  Maintenance Maintain();

  // ---- What it holds ----------------------------------------------------------------------------

  // Consistent when nothing else is being called; each figure alone is always exact.
  ChunkStoreStats Stats() const;
  uint64_t max_chunk_bytes() const;
  // The arena: where all pieces() lie, for registration with a device; and its memfd, which others
  // can read and never write, or -1 if they could. Valid as long as the store.
  MutableByteSpan arena() const;
  int arena_fd() const;
  // Walks everything; empty if index, policy and allocator agree, otherwise where they do not. For
  // tests, while nothing else is being called.
  std::string CheckInvariants() const;

 private:
  struct Parts;
  struct Evicted {
    size_t chunks = 0;
    bool exhausted = false;  // Nothing is left that may go now.
  };

  explicit ChunkStore(std::unique_ptr<Parts> parts);
  Status Judge(const NewChunk& chunk, uint64_t bytes) const;
  // Gives the entry memory, evicting others if need be. Errors: kAllPinned, kBusy.
  Status MakeRoom(ChunkEntry& entry);
  Status NoRoom(const ChunkEntry& entry) const;
  Evicted Evict(uint64_t arena_bytes, uint64_t metadata_bytes, size_t max_victims);
  Status Publish(ChunkEntry* entry, OwnerId owner, bool replace);
  void CountLookup(Code code);
  Status CheckGroups(std::span<const KeyGroup> groups,
                     const std::optional<ReserveRequest>& reserve) const;
  void Reserve(const ReserveRequest& request, std::vector<ChunkRef> chunks, MatchResult& result);
  void CountDropped(const ChunkRef& removed);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_STORE_CHUNK_STORE_H_
