#include "server/daemon/serving/early_data.h"

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

bool SameFrame(const DataHeader& a, const DataHeader& b) {
  return a.item == b.item && a.offset == b.offset && a.length == b.length;
}

}  // namespace

bool EarlyBudget::TryTake(uint64_t bytes) {
  uint64_t taken = bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > max_bytes_ - taken) return false;
  } while (!bytes_.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
  return true;
}

EarlyData::Entry* EarlyData::EntryOf(uint64_t request_id) {
  const auto it = entries_.find(request_id);
  if (it != entries_.end()) return &it->second;
  return entries_.size() < kMaxFrames ? &entries_[request_id] : nullptr;
}

bool EarlyData::Locate(uint64_t request_id, const DataHeader& header, Pieces& pieces) {
  Entry* const entry = EntryOf(request_id);
  if (entry == nullptr) return false;
  const bool twice =
      std::any_of(entry->frames.begin(), entry->frames.end(),
                  [&](const Frame& frame) { return SameFrame(frame.header, header); });
  const bool room = entry->state == State::kWaiting && !twice && header.length > 0 &&
                    frames_ < kMaxFrames && header.length <= max_bytes_ - bytes_;
  if (!room || !all_.TryTake(header.length)) {
    entry->lost = true;
    return false;
  }
  Frame frame{.header = header, .bytes = std::make_unique<std::byte[]>(header.length)};
  pieces.push_back({frame.bytes.get(), header.length});
  bytes_ += header.length;
  ++frames_;
  entry->frames.push_back(std::move(frame));
  return true;
}

void EarlyData::OnDataFailed(uint64_t request_id, const DataHeader& header) {
  Entry* const entry = EntryOf(request_id);
  if (entry == nullptr || entry->state != State::kWaiting) return;
  if (failed_ == kMaxFrames) {
    entry->lost = true;
    return;
  }
  entry->failed.push_back(header);
  ++failed_;
}

std::optional<EarlyData::Frame> EarlyData::OnData(uint64_t request_id, const DataHeader& header,
                                                  const Status& status) {
  const auto it = entries_.find(request_id);
  if (it == entries_.end()) return std::nullopt;
  Entry& entry = it->second;
  const auto found = std::find_if(
      entry.frames.begin(), entry.frames.end(),
      [&](const Frame& frame) { return !frame.landed && SameFrame(frame.header, header); });
  if (found == entry.frames.end()) return std::nullopt;
  found->landed = true;
  found->status = status;
  if (entry.state == State::kWaiting) return std::nullopt;
  Frame frame = std::move(*found);
  Release(frame);
  const bool wanted = entry.state == State::kClaimed && !frame.disowned;
  entry.frames.erase(found);
  if (entry.frames.empty()) entries_.erase(it);
  return wanted ? std::optional<Frame>(std::move(frame)) : std::nullopt;
}

bool EarlyData::Holds(uint64_t request_id, const DataHeader& header) const {
  const auto it = entries_.find(request_id);
  return it != entries_.end() &&
         std::any_of(it->second.frames.begin(), it->second.frames.end(), [&](const Frame& frame) {
           return !frame.landed && SameFrame(frame.header, header);
         });
}

EarlyData::Claimed EarlyData::Claim(uint64_t request_id) {
  Claimed claimed;
  const auto it = entries_.find(request_id);
  if (it == entries_.end()) return claimed;
  Entry& entry = it->second;
  claimed.lost = entry.lost;
  failed_ -= entry.failed.size();
  claimed.failed = std::exchange(entry.failed, {});
  entry.state = State::kClaimed;
  std::vector<Frame> rest;
  for (Frame& frame : entry.frames) {
    if (frame.landed) {
      Release(frame);
      claimed.landed.push_back(std::move(frame));
    } else {
      claimed.on_their_way.push_back(frame.header);
      rest.push_back(std::move(frame));
    }
  }
  entry.frames = std::move(rest);
  if (entry.frames.empty()) entries_.erase(it);
  return claimed;
}

void EarlyData::Disown(uint64_t request_id, const DataHeader& header) {
  const auto it = entries_.find(request_id);
  if (it == entries_.end()) return;
  for (Frame& frame : it->second.frames) {
    if (SameFrame(frame.header, header)) frame.disowned = true;
  }
}

void EarlyData::Erase(uint64_t request_id) {
  const auto it = entries_.find(request_id);
  if (it == entries_.end()) return;
  for (const Frame& frame : it->second.frames) Release(frame);
  failed_ -= it->second.failed.size();
  entries_.erase(it);
}

void EarlyData::Forget(uint64_t request_id) {
  const auto end = entries_.upper_bound(request_id);
  for (auto it = entries_.begin(); it != end;) {
    Entry& entry = it->second;
    if (entry.state == State::kWaiting) entry.state = State::kForgotten;
    if (entry.state == State::kForgotten) {
      failed_ -= entry.failed.size();
      entry.failed.clear();
      std::erase_if(entry.frames, [this](const Frame& frame) {
        if (frame.landed) Release(frame);
        return frame.landed;
      });
    }
    it = entry.frames.empty() ? entries_.erase(it) : std::next(it);
  }
}

void EarlyData::Release(const Frame& frame) {
  bytes_ -= frame.header.length;
  --frames_;
  all_.Return(frame.header.length);
}

}  // namespace penstock
