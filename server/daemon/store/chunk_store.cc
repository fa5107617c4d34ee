#include "server/daemon/store/chunk_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/format/selection.h"
#include "common/format/verify.h"
#include "server/daemon/store/chunk_entry.h"
#include "server/daemon/store/chunk_index.h"
#include "server/daemon/store/store_parts.h"

namespace penstock {
namespace {

// One round of evictions: bounds the time between two attempts to allocate.
constexpr size_t kVictimsPerRound = 1024;
// Rounds that may free enough in vain, because others take it.
constexpr int kMaxVainRounds = 1000;

size_t Index(Code code) { return static_cast<size_t>(code); }

uint64_t OrDefault(uint64_t value, uint64_t fallback) { return value != 0 ? value : fallback; }

// Whether the bytes of a whole chunk are those of its checksums.
Status CheckBytes(const ChunkKey& key, const Manifest& manifest, std::span<const iovec> pieces) {
  if (manifest.segments.empty()) return Status::Ok();
  return VerifySegments(key, manifest, Selection::All(), pieces);
}

}  // namespace

Result<std::unique_ptr<ChunkStore>> ChunkStore::Create(const ChunkStoreOptions& wanted) {
  PENSTOCK_RETURN_IF_ERROR(wanted.Validate());
  ChunkStoreOptions options = wanted;
  options.max_chunk_bytes = OrDefault(options.max_chunk_bytes, options.arena.bytes / 4);
  options.max_metadata_bytes =
      OrDefault(options.max_metadata_bytes, std::max<uint64_t>(options.arena.bytes / 8, 16u << 20));
  auto parts = std::make_unique<Parts>(options);
  PENSTOCK_ASSIGN_OR_RETURN(parts->space, ChunkSpace::Create(options, parts->counters));
  return std::unique_ptr<ChunkStore>(new ChunkStore(std::move(parts)));
}

ChunkStore::ChunkStore(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

ChunkStore::~ChunkStore() { Clear(); }

// ---- Namespaces ---------------------------------------------------------------------------------

Result<HeldNamespace> ChunkStore::HoldNamespace(const Fingerprint& fingerprint,
                                                ByteSpan descriptor) {
  PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<NamespaceRecord> record,
                            parts_->namespaces.Open(fingerprint, descriptor));
  const NamespaceId id = record->id;
  return HeldNamespace{id, std::move(record)};
}
Result<NamespaceId> ChunkStore::OpenNamespace(const Fingerprint& fingerprint, ByteSpan descriptor) {
  PENSTOCK_ASSIGN_OR_RETURN(const HeldNamespace held, HoldNamespace(fingerprint, descriptor));
  return held.id;
}
NamespaceId ChunkStore::FindNamespace(const Fingerprint& fingerprint) const {
  return parts_->namespaces.Find(fingerprint);
}
std::optional<NamespaceInfo> ChunkStore::GetNamespace(NamespaceId ns) const {
  return parts_->namespaces.Info(ns);
}
std::vector<NamespaceInfo> ChunkStore::ListNamespaces() const { return parts_->namespaces.List(); }

// ---- Writers ------------------------------------------------------------------------------------

Status ChunkStore::Judge(const NewChunk& chunk, uint64_t bytes) const {
  if (chunk.parent == chunk.key) {
    return Status(Code::kInvalidArgument, "a chunk cannot be its own parent");
  }
  if (bytes > max_chunk_bytes()) {
    return Status(Code::kTooLarge,
                  fmt::format("a chunk of {} bytes; the limit is {}", bytes, max_chunk_bytes()));
  }
  const Code taken = parts_->index.Probe(chunk.key, chunk.ns, parts_->Draw(1));
  if (taken == Code::kMiss || (taken == Code::kAlreadyExists && chunk.replace)) return Status::Ok();
  if (taken == Code::kFormatMismatch) {
    return Status(taken, fmt::format("the key {} is taken by a chunk of another namespace",
                                     chunk.key.ToShortHex()));
  }
  return Status(taken);
}

Result<PendingChunk> ChunkStore::Begin(NewChunk chunk) {
  StoreCounters& counters = parts_->counters;
  Add(counters.begun, 1);
  const auto refuse = [&counters](Status why) {
    const bool exists = why.code() == Code::kAlreadyExists;
    Add(exists ? counters.exists : counters.refused[Index(why.code())], 1);
    return why;
  };

  std::shared_ptr<NamespaceRecord> ns = parts_->namespaces.Get(chunk.ns);
  if (ns == nullptr) return refuse(Status(Code::kInvalidArgument, "the namespace is not open"));
  if (Status valid = chunk.manifest.Validate(); !valid.ok()) return refuse(std::move(valid));
  const uint64_t bytes = chunk.manifest.TotalStoredBytes();
  if (Status verdict = Judge(chunk, bytes); !verdict.ok()) return refuse(std::move(verdict));

  // Else the least recently used chunk, and the first to go, might be the one that this one needs.
  if (chunk.parent) (void)parts_->index.Probe(*chunk.parent, chunk.ns, parts_->Draw(1));

  const OwnerId owner = chunk.owner;
  const bool replace = chunk.replace;
  if (Status busy = parts_->space->pending().Take(owner, bytes); !busy.ok()) {
    return refuse(std::move(busy));
  }
  ChunkEntry* const entry = parts_->space->NewEntry(std::move(chunk), std::move(ns), bytes);
  if (Status room = MakeRoom(*entry); !room.ok()) {
    parts_->space->pending().Return(owner, bytes);
    Unref(entry);
    return refuse(std::move(room));
  }
  return PendingChunk(entry, owner, replace);
}

Status ChunkStore::MakeRoom(ChunkEntry& entry) {
  ChunkSpace& space = *parts_->space;
  bool expired = false;
  for (int vain = 0; vain < kMaxVainRounds;) {
    if (space.Allocate(entry)) return Status::Ok();
    const RetentionPolicy::Goal goal = space.Shortage(entry);
    const Evicted evicted = Evict(goal.arena_bytes, goal.metadata_bytes, kVictimsPerRound);
    if (evicted.chunks < kVictimsPerRound) ++vain;
    if (evicted.chunks > 0 || !evicted.exhausted) continue;
    if (space.Allocate(entry)) return Status::Ok();  // Somebody else gave back in the meantime.
    if (std::exchange(expired, true)) return NoRoom(entry);
    (void)parts_->holds.Expire(parts_->Now());
  }
  return Status(Code::kBusy, "other stores took the space that was freed (retry in 5 ms)");
}

Status ChunkStore::NoRoom(const ChunkEntry& entry) const {
  // Bytes that come back by themselves, all that are taken and not in the index: if they would do,
  // it is a matter of time.
  const ExtentAllocator& allocator = parts_->space->allocator();
  const uint64_t free = allocator.free_bytes();
  const uint64_t taken = allocator.capacity() - free;
  const uint64_t coming = taken - std::min(taken, Read(parts_->counters.chunk_arena_bytes));
  if (free + coming >= entry.arena_bytes && coming > 0) {
    return Status(Code::kBusy,
                  fmt::format("{} bytes are wanted, {} are free, {} are in stores or reads in "
                              "progress (retry in 5 ms)",
                              entry.arena_bytes, free, coming));
  }
  return Status(Code::kAllPinned,
                fmt::format("{} bytes are wanted, {} are free, and all other chunks are pinned, "
                            "reserved or being read",
                            entry.arena_bytes, free));
}

ChunkStore::Evicted ChunkStore::Evict(uint64_t arena_bytes, uint64_t metadata_bytes,
                                      size_t max_victims) {
  const RetentionPolicy::Victims victims =
      parts_->policy->Propose({arena_bytes, metadata_bytes, max_victims});
  Evicted evicted{.chunks = 0, .exhausted = victims.exhausted};
  for (RetentionNode* const victim : victims.nodes) {
    const ChunkRef gone = parts_->index.Evict(*victim);
    if (!gone) continue;
    ++evicted.chunks;
    Add(parts_->counters.evicted_chunks, 1);
    Add(parts_->counters.evicted_bytes, gone.bytes());
  }
  return evicted;
}

Status ChunkStore::Commit(PendingChunk chunk) {
  ChunkEntry* const entry = std::exchange(chunk.entry_, nullptr);
  const OwnerId owner = chunk.owner_;
  Status verdict;
  // The choke point of everything that enters the store.
  if (parts_->options.verify_on_commit) {
    verdict = CheckBytes(entry->key, entry->manifest, entry->pieces);
  }
  if (verdict.ok()) return Publish(entry, owner, chunk.replace_);
  Add(parts_->counters.failed[Index(verdict.code())], 1);
  parts_->space->pending().Return(owner, entry->payload_bytes);
  Unref(entry);
  return verdict;
}

Status ChunkStore::Publish(ChunkEntry* entry, OwnerId owner, bool replace) {
  StoreCounters& counters = parts_->counters;
  const uint64_t bytes = entry->payload_bytes;
  entry->last_use.store(parts_->Draw(1), std::memory_order_relaxed);
  // Else a pin that is over could keep the chunk's own pin from passing on.
  if (replace) (void)parts_->holds.Expire(parts_->Now());
  ChunkRef replaced;
  const Code code = parts_->index.Insert(*entry, replace, replaced);
  parts_->space->pending().Return(owner, bytes);
  if (code == Code::kOk) {  // The entry is the index's now, and may be gone already.
    Add(counters.committed, 1);
    Add(counters.committed_bytes, bytes);
    if (replaced) {
      Add(counters.replaced_chunks, 1);
      Add(counters.replaced_bytes, replaced.bytes());
    }
    return Status::Ok();
  }
  Add(code == Code::kAlreadyExists ? counters.exists : counters.failed[Index(code)], 1);
  Unref(entry);
  return Status(code);
}

// ---- Retention ----------------------------------------------------------------------------------

Status ChunkStore::ReleaseReservation(ReservationId id, OwnerId owner) {
  // Whether it is over is for the clock to say, not for who looked at it last.
  (void)parts_->holds.Expire(parts_->Now());
  return parts_->holds.Release(id, owner);
}

Status ChunkStore::RenewReservation(ReservationId id, OwnerId owner, Duration ttl) {
  const Duration granted = std::clamp(ttl, Duration::zero(), parts_->options.max_reservation_ttl);
  const MonotonicTime now = parts_->Now();
  (void)parts_->holds.Expire(now);
  return parts_->holds.Renew(id, owner, now + granted);
}

size_t ChunkStore::ReleaseOwner(OwnerId owner) { return parts_->holds.ReleaseOwner(owner); }

Status ChunkStore::Pin(const ChunkKey& key, const ReadTerms& terms, Duration ttl) {
  if (ttl <= Duration::zero()) {
    return Status(Code::kInvalidArgument, "a pin needs a time greater than 0");
  }
  const MonotonicTime expiry = parts_->Now() + std::min(ttl, parts_->options.max_pin_ttl);
  (void)parts_->holds.Expire(parts_->Now());
  Status pinned;
  const Code code = parts_->index.Read(key, terms, [&](ChunkEntry& entry) {
    Ref(entry);
    pinned = parts_->holds.Pin(ChunkRef(&entry), expiry);
  });
  return code == Code::kOk ? pinned : Status(code);
}

Status ChunkStore::Unpin(const ChunkKey& key, const ReadTerms& terms) {
  PENSTOCK_ASSIGN_OR_RETURN(const ChunkRef chunk, Peek(key, terms));
  (void)parts_->holds.Expire(parts_->Now());
  if (parts_->holds.TakePin(chunk)) return Status::Ok();
  return Status(Code::kFenced, "the chunk is not pinned, or not any more");
}

size_t ChunkStore::Touch(std::span<const ChunkKey> keys, const ReadTerms& terms) {
  const uint64_t newest = parts_->Draw(keys.size());
  size_t touched = 0;
  while (touched < keys.size() && parts_->index.Read(keys[touched], terms, [&](ChunkEntry& entry) {
    parts_->policy->Touch(entry, newest - touched);
  }) == Code::kOk) {
    ++touched;
  }
  return touched;
}

void ChunkStore::CountDropped(const ChunkRef& removed) {
  Add(parts_->counters.dropped_chunks, 1);
  Add(parts_->counters.dropped_bytes, removed.bytes());
}

Status ChunkStore::Drop(const ChunkKey& key, NamespaceId ns) {
  ChunkRef removed;
  const Code code = parts_->index.Remove(key, ns, removed);
  if (code == Code::kOk) CountDropped(removed);
  return Status(code);
}

Status ChunkStore::DropIfDamaged(const ChunkRef& chunk) {
  Status status = CheckBytes(chunk.key(), chunk.manifest(), chunk.pieces());
  if (status.ok()) return status;
  ChunkRef removed;
  if (parts_->index.Remove(chunk, removed)) {
    CountDropped(removed);
    Add(parts_->counters.damaged_chunks, 1);
  }
  return status;
}

size_t ChunkStore::DropNamespace(NamespaceId ns) {
  if (ns == NamespaceId::kNone) return 0;
  size_t dropped = 0;
  for (uint32_t shard = 0; shard < parts_->index.shards(); ++shard) {
    const std::vector<ChunkRef> removed = parts_->index.RemoveAll(shard, ns);
    for (const ChunkRef& chunk : removed) CountDropped(chunk);
    dropped += removed.size();
  }
  return dropped;
}

size_t ChunkStore::Clear() {
  size_t dropped = 0;
  for (uint32_t shard = 0; shard < parts_->index.shards(); ++shard) {
    const std::vector<ChunkRef> removed = parts_->index.RemoveAll(shard, NamespaceId::kNone);
    for (const ChunkRef& chunk : removed) CountDropped(chunk);
    dropped += removed.size();
  }
  parts_->holds.RevokeReservations();
  return dropped;
}

ChunkStore::Maintenance ChunkStore::Maintain() {
  Maintenance done;
  const HoldTable::Expired expired = parts_->holds.Expire(parts_->Now());
  done.expired_reservations = expired.reservations;
  done.expired_pins = expired.pins;
  if (const uint64_t short_of = parts_->space->ShortOfHeadroom(); short_of > 0) {
    const Evicted evicted = Evict(short_of, 0, kVictimsPerRound);
    done.evicted = evicted.chunks;
    done.more = !evicted.exhausted && parts_->space->ShortOfHeadroom() > 0;
  }
  return done;
}

// ---- What it holds ------------------------------------------------------------------------------

uint64_t ChunkStore::max_chunk_bytes() const { return parts_->options.max_chunk_bytes; }
MutableByteSpan ChunkStore::arena() const { return parts_->space->arena().span(); }
int ChunkStore::arena_fd() const { return parts_->space->arena().readable_fd(); }

std::string ChunkStore::CheckInvariants() const {
  if (std::string wrong = parts_->space->allocator().CheckInvariants(); !wrong.empty())
    return wrong;
  ChunkIndex::Sums sums;
  if (std::string wrong = parts_->index.Check(sums); !wrong.empty()) return wrong;
  const uint64_t used = parts_->space->allocator().GetStats().used_bytes;
  const uint64_t counted = Read(parts_->counters.chunk_arena_bytes);
  if (sums.arena_bytes > used || sums.arena_bytes != counted) {
    return fmt::format("{} bytes are indexed, {} are counted, {} are taken", sums.arena_bytes,
                       counted, used);
  }
  return parts_->policy->CheckInvariants(sums.chunks);
}

ChunkStoreStats ChunkStore::Stats() const {
  const StoreCounters& counters = parts_->counters;
  ChunkStoreStats stats;
  CopyCounters(counters, stats);

  const ChunkSpace& space = *parts_->space;
  stats.pending_chunks = space.pending().chunks();
  stats.pending_bytes = space.pending().bytes();
  stats.metadata_bytes = space.metadata_bytes();
  stats.namespaces = parts_->namespaces.size();

  const ExtentAllocator::Stats arena = space.allocator().GetStats();
  stats.arena_bytes = arena.used_bytes + arena.free_bytes;
  stats.used_bytes = arena.used_bytes;
  stats.free_bytes = arena.free_bytes;
  stats.largest_free_bytes = arena.largest_free;
  stats.free_blocks = arena.free_blocks;

  const HoldTable::Gauges holds = parts_->holds.GetGauges();
  stats.reservations = holds.reservations;
  stats.reserved_chunks = holds.reserved_chunks;
  stats.reserved_bytes = holds.reserved_bytes;
  stats.pinned_chunks = holds.pinned_chunks;
  stats.pinned_bytes = holds.pinned_bytes;
  stats.reservations_made = holds.made;
  stats.reservations_released = holds.released;
  stats.reservations_expired = holds.expired;
  stats.reservations_revoked = holds.revoked;
  stats.reservations_refused = holds.refused;
  return stats;
}

}  // namespace penstock
