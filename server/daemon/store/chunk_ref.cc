#include "server/daemon/store/chunk_ref.h"

#include <algorithm>

#include "server/daemon/store/chunk_entry.h"

namespace penstock {

ChunkRef::ChunkRef(const ChunkRef& other) : entry_(other.entry_) {
  if (entry_ != nullptr) Ref(*entry_);
}
ChunkRef::~ChunkRef() {
  if (entry_ != nullptr) Unref(entry_);
}
bool ChunkRef::kept() const { return entry_->holds.load(std::memory_order_relaxed) > 0; }
const ChunkKey& ChunkRef::key() const { return entry_->key; }
NamespaceId ChunkRef::ns() const { return entry_->ns->id; }
const std::optional<ChunkKey>& ChunkRef::parent() const { return entry_->parent; }
uint64_t ChunkRef::bytes() const { return entry_->payload_bytes; }
const Manifest& ChunkRef::manifest() const { return entry_->manifest; }
ByteSpan ChunkRef::encoded_manifest() const { return entry_->encoded_manifest; }
std::span<const iovec> ChunkRef::pieces() const { return entry_->pieces; }

PendingChunk::PendingChunk(PendingChunk&& other) noexcept
    : entry_(std::exchange(other.entry_, nullptr)),
      owner_(other.owner_),
      replace_(other.replace_) {}
PendingChunk& PendingChunk::operator=(PendingChunk&& other) noexcept {
  PendingChunk taken(std::move(other));  // Leaves with what this one had.
  std::swap(entry_, taken.entry_);
  std::swap(owner_, taken.owner_);
  std::swap(replace_, taken.replace_);
  return *this;
}
PendingChunk::~PendingChunk() {
  if (entry_ != nullptr) entry_->store->Abandon(entry_, owner_);
}
const ChunkKey& PendingChunk::key() const { return entry_->key; }
uint64_t PendingChunk::bytes() const { return entry_->payload_bytes; }
const Manifest& PendingChunk::manifest() const { return entry_->manifest; }
std::span<const iovec> PendingChunk::pieces() const { return entry_->pieces; }

bool AppendSlice(std::span<const iovec> pieces, uint64_t offset, uint64_t length,
                 absl::InlinedVector<iovec, 4>& out) {
  uint64_t total = 0;
  for (const iovec& piece : pieces) total += piece.iov_len;
  if (offset > total || length > total - offset) return false;
  for (const iovec& piece : pieces) {
    if (length == 0) break;
    if (offset >= piece.iov_len) {
      offset -= piece.iov_len;
      continue;
    }
    const uint64_t take = std::min<uint64_t>(length, piece.iov_len - offset);
    out.push_back({static_cast<std::byte*>(piece.iov_base) + offset, take});
    length -= take;
    offset = 0;
  }
  return true;
}

}  // namespace penstock
