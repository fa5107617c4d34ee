#include "server/daemon/serving/early_data.h"

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

bool SameFrame(const DataHeader& a, const DataHeader& b) {
  return a.item == b.item && a.offset == b.offset && a.length == b.length;
}

}  // namespace

bool EarlyData::Locate(uint64_t request_id, const DataHeader& header, Pieces& pieces) {
  const auto it = entries_.find(request_id);
  if (it == entries_.end() && entries_.size() >= kMaxFrames) return false;
  Entry& entry = it == entries_.end() ? entries_[request_id] : it->second;
  const bool room = frames_ < kMaxFrames && header.length <= max_bytes_ - bytes_;
  const bool twice = std::any_of(entry.frames.begin(), entry.frames.end(), [&](const Frame& frame) {
    return SameFrame(frame.header, header);
  });
  if (entry.state != State::kWaiting || !room || twice || header.length == 0) {
    entry.lost = true;
    return false;
  }
  Frame frame{.header = header, .bytes = std::make_unique<std::byte[]>(header.length)};
  pieces.push_back({frame.bytes.get(), header.length});
  Account(frame, 1);
  entry.frames.push_back(std::move(frame));
  return true;
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
  Account(frame, -1);
  const bool wanted = entry.state == State::kClaimed;
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
  entry.state = State::kClaimed;
  std::vector<Frame> rest;
  for (Frame& frame : entry.frames) {
    if (frame.landed) {
      Account(frame, -1);
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

void EarlyData::Disown(uint64_t request_id) {
  const auto it = entries_.find(request_id);
  if (it != entries_.end()) it->second.state = State::kForgotten;
}

void EarlyData::Erase(uint64_t request_id) {
  const auto it = entries_.find(request_id);
  if (it == entries_.end()) return;
  for (const Frame& frame : it->second.frames) Account(frame, -1);
  entries_.erase(it);
}

void EarlyData::Forget(uint64_t request_id) {
  const auto end = entries_.upper_bound(request_id);
  for (auto it = entries_.begin(); it != end;) {
    Entry& entry = it->second;
    if (entry.state == State::kWaiting) entry.state = State::kForgotten;
    if (entry.state == State::kForgotten) {
      std::erase_if(entry.frames, [this](const Frame& frame) {
        if (frame.landed) Account(frame, -1);
        return frame.landed;
      });
    }
    it = entry.frames.empty() ? entries_.erase(it) : std::next(it);
  }
}

void EarlyData::Account(const Frame& frame, int sign) {
  bytes_ += sign > 0 ? frame.header.length : -frame.header.length;
  frames_ += sign > 0 ? 1 : -1;
}

}  // namespace penstock
