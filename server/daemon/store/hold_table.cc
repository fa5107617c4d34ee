#include "server/daemon/store/hold_table.h"

#include <fmt/format.h>

#include <optional>

#include "server/daemon/store/chunk_entry.h"
#include "server/daemon/store/store_check.h"

namespace penstock {

void HoldTable::Unhold(ChunkEntry& entry) {
  if (entry.holds.fetch_sub(1) == 1) policy_.Released(entry);
}

void HoldTable::CountReserved(ChunkEntry& entry) {
  entry.holds.fetch_add(1);
  if (++entry.reservations > 1) return;
  ++gauges_.reserved_chunks;
  gauges_.reserved_bytes += entry.payload_bytes;
}

void HoldTable::UncountReserved(ChunkEntry& entry) {
  STORE_CHECK(entry.reservations > 0);
  if (--entry.reservations == 0) {
    --gauges_.reserved_chunks;
    gauges_.reserved_bytes -= entry.payload_bytes;
  }
  Unhold(entry);
}

bool HoldTable::FitsReserved(const Refs& chunks) const {
  if (gauges_.reservations >= limits_.reservations) return false;
  if (chunks.size() > limits_.references - references_) return false;
  // A key that occurs twice is counted twice here: refused a little early, never too late.
  uint64_t more = 0;
  for (const ChunkRef& chunk : chunks) {
    if (chunk.entry_->reservations == 0) more += chunk.entry_->payload_bytes;
  }
  return more <= limits_.reserved_bytes && gauges_.reserved_bytes <= limits_.reserved_bytes - more;
}

Result<ReservationId> HoldTable::Reserve(OwnerId owner, MonotonicTime expiry, Refs chunks) {
  MutexLock lock(mu_);
  if (!FitsReserved(chunks)) {
    ++gauges_.refused;
    return Status(Code::kBusy,
                  fmt::format("{} reservations hold {} bytes in {} places; the limits are {}, {} "
                              "and {}",
                              gauges_.reservations, gauges_.reserved_bytes, references_,
                              limits_.reservations, limits_.reserved_bytes, limits_.references));
  }
  ReservationId id;
  do {
    id = static_cast<ReservationId>(SystemRandom());
  } while (id == ReservationId::kNone || reservations_.contains(id));
  for (const ChunkRef& chunk : chunks) CountReserved(*chunk.entry_);
  references_ += chunks.size();
  reservations_[id] = {owner, expiry, std::move(chunks)};
  by_owner_[owner].insert(id);
  by_expiry_.emplace(expiry, id);
  ++gauges_.reservations;
  ++gauges_.made;
  return id;
}

void HoldTable::EndLocked(ReservationId id, Refs& freed) {
  auto it = reservations_.find(id);
  STORE_CHECK(it != reservations_.end());
  Reservation& reservation = it->second;
  for (ChunkRef& chunk : reservation.chunks) {
    UncountReserved(*chunk.entry_);
    freed.push_back(std::move(chunk));
  }
  references_ -= reservation.chunks.size();
  by_expiry_.erase({reservation.expiry, id});
  const auto of_owner = by_owner_.find(reservation.owner);
  of_owner->second.erase(id);
  if (of_owner->second.empty()) by_owner_.erase(of_owner);
  reservations_.erase(it);
  --gauges_.reservations;
}

Status HoldTable::Release(ReservationId id, OwnerId owner) {
  Refs freed;
  MutexLock lock(mu_);
  const auto it = reservations_.find(id);
  if (it == reservations_.end() || it->second.owner != owner) {
    return Status(Code::kFenced,
                  "no such reservation: it was released, it expired, or it belongs "
                  "to another session");
  }
  EndLocked(id, freed);
  ++gauges_.released;
  return Status::Ok();
}

Status HoldTable::Renew(ReservationId id, OwnerId owner, MonotonicTime expiry) {
  MutexLock lock(mu_);
  const auto it = reservations_.find(id);
  if (it == reservations_.end() || it->second.owner != owner) {
    return Status(Code::kFenced,
                  "no such reservation: it was released, it expired, or it belongs "
                  "to another session");
  }
  by_expiry_.erase({it->second.expiry, id});
  it->second.expiry = expiry;
  by_expiry_.emplace(expiry, id);
  return Status::Ok();
}

size_t HoldTable::ReleaseOwner(OwnerId owner) {
  Refs freed;
  MutexLock lock(mu_);
  const auto it = by_owner_.find(owner);
  if (it == by_owner_.end()) return 0;
  const std::vector<ReservationId> ids(it->second.begin(), it->second.end());
  for (const ReservationId id : ids) EndLocked(id, freed);
  gauges_.released += ids.size();
  return ids.size();
}

size_t HoldTable::RevokeReservations() {
  Refs freed;
  MutexLock lock(mu_);
  size_t ended = 0;
  while (!by_expiry_.empty()) {
    EndLocked(by_expiry_.begin()->second, freed);
    ++gauges_.revoked;
    ++ended;
  }
  return ended;
}

void HoldTable::AddPinLocked(ChunkRef chunk, MonotonicTime expiry) {
  ChunkEntry& entry = *chunk.entry_;
  entry.holds.fetch_add(1);
  entry.pinned = true;
  ++gauges_.pinned_chunks;
  gauges_.pinned_bytes += entry.payload_bytes;
  pins_by_expiry_.emplace(expiry, entry.key);
  const ChunkKey key = entry.key;
  pins_[key] = {std::move(chunk), expiry};
}

HoldTable::PinRecord HoldTable::RemovePinLocked(const ChunkKey& key) {
  const auto it = pins_.find(key);
  STORE_CHECK(it != pins_.end());
  PinRecord pin = std::move(it->second);
  pins_by_expiry_.erase({pin.expiry, key});
  pins_.erase(it);
  ChunkEntry& entry = *pin.chunk.entry_;
  entry.pinned = false;
  --gauges_.pinned_chunks;
  gauges_.pinned_bytes -= entry.payload_bytes;
  Unhold(entry);
  return pin;
}

Status HoldTable::Pin(ChunkRef chunk, MonotonicTime expiry) {
  MutexLock lock(mu_);
  ChunkEntry& entry = *chunk.entry_;
  if (entry.pinned) {
    PinRecord& pin = pins_.at(entry.key);
    pins_by_expiry_.erase({pin.expiry, entry.key});
    pin.expiry = expiry;
    pins_by_expiry_.emplace(expiry, entry.key);
    return Status::Ok();
  }
  if (pins_.size() >= limits_.pins || entry.payload_bytes > limits_.pinned_bytes ||
      gauges_.pinned_bytes > limits_.pinned_bytes - entry.payload_bytes) {
    return Status(Code::kBusy, fmt::format("{} pins hold {} bytes; the limits are {} and {}",
                                           gauges_.pinned_chunks, gauges_.pinned_bytes,
                                           limits_.pins, limits_.pinned_bytes));
  }
  AddPinLocked(std::move(chunk), expiry);
  return Status::Ok();
}

ChunkRef HoldTable::TakePin(const ChunkRef& chunk) {
  MutexLock lock(mu_);
  if (!chunk.entry_->pinned) return {};
  return std::move(RemovePinLocked(chunk.key()).chunk);
}

ChunkRef HoldTable::PassPin(const ChunkRef& from, const ChunkRef& to) {
  MutexLock lock(mu_);
  if (!from.entry_->pinned) return {};
  PinRecord old = RemovePinLocked(from.key());
  const uint64_t bytes = to.entry_->payload_bytes;
  if (bytes <= limits_.pinned_bytes && gauges_.pinned_bytes <= limits_.pinned_bytes - bytes) {
    AddPinLocked(to, old.expiry);
  }
  return std::move(old.chunk);
}

std::optional<MonotonicTime> HoldTable::PinnedUntil(const ChunkRef& chunk) const {
  MutexLock lock(mu_);
  if (!chunk.entry_->pinned) return std::nullopt;
  return pins_.at(chunk.key()).expiry;
}

HoldTable::Expired HoldTable::Expire(MonotonicTime now) {
  Refs freed;
  MutexLock lock(mu_);
  Expired expired;
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    EndLocked(by_expiry_.begin()->second, freed);
    ++gauges_.expired;
    ++expired.reservations;
  }
  while (!pins_by_expiry_.empty() && pins_by_expiry_.begin()->first <= now) {
    const ChunkKey key = pins_by_expiry_.begin()->second;
    freed.push_back(std::move(RemovePinLocked(key).chunk));
    ++expired.pins;
  }
  return expired;
}

HoldTable::Gauges HoldTable::GetGauges() const {
  MutexLock lock(mu_);
  return gauges_;
}

}  // namespace penstock
