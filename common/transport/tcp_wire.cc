#include "common/transport/tcp_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

// How long the other side may go on reading memory that it was referred to and that is wanted back:
// while it takes nothing, and in all.
constexpr std::chrono::seconds kTakePatience{1};
constexpr std::chrono::seconds kTakeLimit{10};

}  // namespace

TcpWire::TcpWire(WireOwner& owner, References references)
    : owner_(owner),
      max_streams_(1),
      queue_({.slice_bytes = References::kMaxBytes, .max_pieces = kMaxReferences},
             [&owner](std::function<void()> fn) { owner.Defer(std::move(fn)); }),
      references_(std::move(references)) {}

TcpWire::TcpWire(WireOwner& owner, uint32_t max_streams)
    : owner_(owner),
      max_streams_(max_streams),
      queue_(SendQueue::Options(),
             [&owner](std::function<void()> fn) { owner.Defer(std::move(fn)); }) {}

Status TcpWire::CanAttach() const {
  if (streams_.size() < max_streams_) return Status::Ok();
  return Status(Code::kInvalidArgument,
                fmt::format("the session has its {} data streams", max_streams_));
}

Status TcpWire::AttachStream(UniqueFd fd, std::shared_ptr<void> keep) {
  FrameSource& source = *this;
  auto stream = std::make_unique<DataStream>(std::move(fd), owner_, source,
                                             references_ ? &*references_ : nullptr);
  PENSTOCK_RETURN_IF_ERROR(stream->Start(std::move(keep)));
  if (references_ && references_->speaks_first()) stream->Greet();
  streams_.push_back(std::move(stream));
  owner_.ScheduleFlush();
  return Status::Ok();
}

void TcpWire::Send(uint64_t request_id, const DataHeader& header, std::span<const iovec> payload,
                   Session::SendDone done) {
  queue_.Push(request_id, header, payload, std::move(done));
  owner_.ScheduleFlush();
}

void TcpWire::Flush() {
  for (const auto& stream : streams_) {
    if (queue_.empty()) return;
    stream->Write();
    if (owner_.closing()) return;
  }
}

bool TcpWire::NextFrame(OutFrame& frame) {
  if (!queue_.NextFrame(frame)) return false;
  if (references_) references_->Refer(frame);
  return true;
}

void TcpWire::FrameTaken(const OutFrame& frame, const Status& status) {
  OutItem& item = *frame.item;
  last_taken_ = MonotonicNow();
  // It may be memory that sockets can read (a device's, for one).
  if (!status.ok()) references_->ReferNoMore();
  if (!status.ok() && !item.failed) {
    FailItem(item, status);
    queue_.DropFailed();
    queue_.ReportFailure(item, status.code());
    owner_.ScheduleFlush();
  }
  queue_.FrameSent(frame);
  if (item.failed && !Refers(item)) queue_.Complete(item);
  CheckWaits();
}

void TcpWire::FailItem(OutItem& item, const Status& why) {
  queue_.Fail(item, why);
  for (const auto& stream : streams_) stream->DropFrames(item);
  if (!Refers(item)) queue_.Complete(item);
}

bool TcpWire::Refers(const OutItem& item) const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [&](const auto& stream) { return stream->Refers(item); });
}

bool TcpWire::Refers(uint64_t request_id) const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [&](const auto& stream) { return stream->Refers(request_id); });
}

void TcpWire::AddWait(uint64_t request_id, std::function<void()> done) {
  auto wait = std::make_unique<Wait>();
  wait->request_id = request_id;
  wait->done = std::move(done);
  wait->since = MonotonicNow();
  WatchWait(*wait);
  waits_.push_back(std::move(wait));
}

void TcpWire::WatchWait(Wait& wait) {
  wait.timer = owner_.loop().After(kTakePatience, [this, &wait] {
    const MonotonicTime now = MonotonicNow();
    if (now - last_taken_ < kTakePatience && now - wait.since < kTakeLimit) return WatchWait(wait);
    owner_.Close(Status(Code::kDisconnected, "the peer does not let go of memory"));
  });
}

void TcpWire::CheckWaits() {
  std::erase_if(waits_, [this](const std::unique_ptr<Wait>& wait) {
    if (Refers(wait->request_id)) return false;
    owner_.loop().CancelTimer(wait->timer);
    owner_.Defer(std::move(wait->done));
    return true;
  });
}

void TcpWire::BadMemory(const std::shared_ptr<OutItem>& item) {
  FailItem(*item, Status(Code::kBadBuffer, "the source cannot be read"));
  queue_.DropFailed();
  queue_.ReportFailure(*item, Code::kBadBuffer);
  owner_.ScheduleFlush();
}

std::vector<std::shared_ptr<OutItem>> TcpWire::LiveItems() const {
  auto items = queue_.Waiting();
  for (const auto& stream : streams_) stream->CollectItems(items);
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  return items;
}

void TcpWire::Abandon(uint64_t request_id, std::function<void()> done) {
  for (const auto& stream : streams_) stream->AbandonIncoming(request_id);
  auto items = LiveItems();
  std::erase_if(items, [request_id](const std::shared_ptr<OutItem>& item) {
    // What only says that an item failed has no memory, and the peer still wants to know.
    return item->request_id != request_id || item->failed || item->header.status != 0;
  });
  for (const auto& item : items) {
    FailItem(*item, Status(Code::kCancelled, "abandoned by its sender"));
  }
  queue_.DropFailed();
  for (const auto& item : items) queue_.ReportFailure(*item, Code::kCancelled);
  if (!items.empty()) owner_.ScheduleFlush();
  if (Refers(request_id)) return AddWait(request_id, std::move(done));
  owner_.Defer(std::move(done));
}

Status TcpWire::CheckProgress(MonotonicTime now, Duration patience) const {
  for (const auto& stream : streams_) {
    PENSTOCK_RETURN_IF_ERROR(stream->CheckProgress(now, patience));
  }
  return Status::Ok();
}

void TcpWire::Shutdown(const Status& why, std::function<void()> stopped) {
  for (const auto& stream : streams_) stream->FailIncoming(why);
  // First: the other side throws away what it reads of our memory from now on.
  for (const auto& stream : streams_) stream->Stop();
  for (const auto& item : LiveItems()) {
    queue_.Fail(*item, why);
    queue_.Complete(*item);
  }
  queue_.DropFailed();
  for (const auto& wait : std::exchange(waits_, {})) {
    owner_.loop().CancelTimer(wait->timer);
    owner_.Defer(std::move(wait->done));
  }
  stopped();
}

}  // namespace penstock
