#include "server/daemon/store/chunk_index.h"

namespace penstock {

ChunkIndex::ChunkIndex(uint32_t shards, RetentionPolicy& policy, HoldTable& holds,
                       StoreCounters& counters)
    : policy_(policy),
      holds_(holds),
      counters_(counters),
      mask_(shards - 1),
      shards_(std::make_unique<Shard[]>(shards)) {}

Code ChunkIndex::Probe(const ChunkKey& key, NamespaceId ns, uint64_t moment) {
  Shard& shard = ShardOf(key);
  MutexLock lock(shard.mu);
  const auto it = shard.chunks.find(key);
  if (it == shard.chunks.end()) return Code::kMiss;
  if (it->second->ns->id != ns) return Code::kFormatMismatch;
  policy_.Touch(*it->second, moment);
  return Code::kAlreadyExists;
}

Code ChunkIndex::Insert(ChunkEntry& entry, bool replace, ChunkRef& replaced) {
  Shard& shard = ShardOf(entry.key);
  MutexLock lock(shard.mu);
  const auto [it, is_new] = shard.chunks.try_emplace(entry.key, &entry);
  if (!is_new) {
    ChunkEntry& old = *it->second;
    if (old.ns->id != entry.ns->id) return Code::kFormatMismatch;
    if (!replace) return Code::kAlreadyExists;
    {
      // References of our own: PassPin() takes one for the pin, the index keeps the other.
      Ref(old);
      Ref(entry);
      const ChunkRef from(&old), to(&entry);
      (void)holds_.PassPin(from, to);
    }
    replaced = Depart(old);
    it->second = &entry;
  }
  Arrive(entry);
  return Code::kOk;
}

Code ChunkIndex::Remove(const ChunkKey& key, NamespaceId ns, ChunkRef& removed) {
  Shard& shard = ShardOf(key);
  MutexLock lock(shard.mu);
  const auto it = shard.chunks.find(key);
  if (it == shard.chunks.end()) return Code::kMiss;
  if (it->second->ns->id != ns) return Code::kFormatMismatch;
  removed = Depart(*it->second);
  shard.chunks.erase(it);
  return Code::kOk;
}

bool ChunkIndex::Remove(const ChunkRef& chunk, ChunkRef& removed) {
  Shard& shard = ShardOf(chunk.key());
  MutexLock lock(shard.mu);
  const auto it = shard.chunks.find(chunk.key());
  if (it == shard.chunks.end() || it->second != chunk.entry_) return false;
  removed = Depart(*it->second);
  shard.chunks.erase(it);
  return true;
}

std::vector<ChunkRef> ChunkIndex::RemoveAll(uint32_t shard_number, NamespaceId ns) {
  std::vector<ChunkRef> removed;
  Shard& shard = shards_[shard_number];
  MutexLock lock(shard.mu);
  for (auto it = shard.chunks.begin(); it != shard.chunks.end();) {
    const auto here = it++;
    if (ns != NamespaceId::kNone && here->second->ns->id != ns) continue;
    removed.push_back(Depart(*here->second));
    shard.chunks.erase(here);
  }
  return removed;
}

ChunkRef ChunkIndex::Evict(RetentionNode& node) {
  auto* const entry = static_cast<ChunkEntry*>(&node);
  const ChunkRef proposed(entry);  // Outlives the lock.
  Shard& shard = ShardOf(entry->key);
  MutexLock lock(shard.mu);
  const auto it = shard.chunks.find(entry->key);
  if (it == shard.chunks.end() || it->second != entry) return {};
  // The index's reference and ours; readers take theirs under this lock.
  if (entry->refs.load(std::memory_order_acquire) != 2) {
    policy_.Admit(*entry);
    return {};
  }
  shard.chunks.erase(it);
  return Depart(*entry);
}

std::string ChunkIndex::Check(Sums& sums) const {
  for (uint32_t number = 0; number < shards(); ++number) {
    const Shard& shard = shards_[number];
    MutexLock lock(shard.mu);
    for (const auto& [key, entry] : shard.chunks) {
      const bool placed = entry->place != RetentionNode::Place::kNowhere;
      if (entry->key != key || entry->refs.load() == 0 || entry->detached || !placed) {
        return "the index has a chunk that is gone, or that the policy does not know: " +
               key.ToShortHex();
      }
      ++sums.chunks;
      sums.arena_bytes += entry->arena_bytes;
    }
  }
  return "";
}

void ChunkIndex::Arrive(ChunkEntry& entry) {
  policy_.Admit(entry);
  entry.ns->chunks.fetch_add(1, std::memory_order_relaxed);
  entry.ns->bytes.fetch_add(entry.payload_bytes, std::memory_order_relaxed);
  Add(counters_.chunks, 1);
  Add(counters_.chunk_bytes, entry.payload_bytes);
  Add(counters_.chunk_arena_bytes, entry.arena_bytes);
}

ChunkRef ChunkIndex::Depart(ChunkEntry& entry) {
  policy_.Forget(entry);
  entry.detached = true;
  entry.ns->chunks.fetch_sub(1, std::memory_order_relaxed);
  entry.ns->bytes.fetch_sub(entry.payload_bytes, std::memory_order_relaxed);
  Subtract(counters_.chunks, 1);
  Subtract(counters_.chunk_bytes, entry.payload_bytes);
  Subtract(counters_.chunk_arena_bytes, entry.arena_bytes);
  Add(counters_.detached_chunks, 1);
  Add(counters_.detached_bytes, entry.payload_bytes);
  ChunkRef of_index(&entry);
  (void)holds_.TakePin(of_index);  // Not the last reference: the index's is left.
  return of_index;
}

}  // namespace penstock
