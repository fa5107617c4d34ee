#include "common/transport/tcp_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock {

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
  auto stream = std::make_unique<DataStream>(std::move(fd), owner_, source);
  PENSTOCK_RETURN_IF_ERROR(stream->Start(std::move(keep)));
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

void TcpWire::FailItem(OutItem& item, const Status& why) {
  queue_.Fail(item, why);
  for (const auto& stream : streams_) stream->DropFrames(item);
  queue_.Complete(item);
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
  for (const auto& item : LiveItems()) FailItem(*item, why);
  queue_.DropFailed();
  for (const auto& stream : streams_) stream->Stop();
  stopped();
}

}  // namespace penstock
