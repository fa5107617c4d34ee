#include "common/transport/tcp_wire.h"

#include <fmt/format.h>

#include <algorithm>

namespace penstock {
namespace {

// A longer payload travels as several frames, so that every stream can carry a part of it and a
// frame that must be filled with zeros is soon over.
constexpr uint64_t kSliceBytes = 1u << 20;
constexpr uint64_t kSmallBytes = 64u << 10;
// Small items that may pass a waiting big one before it gets its turn.
constexpr int kSmallInARow = 16;

}  // namespace

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
  auto item = std::make_shared<OutItem>();
  item->request_id = request_id;
  item->header = header;
  item->pieces.assign(payload.begin(), payload.end());
  item->cursor = PieceCursor(item->pieces);
  item->unsent = header.length;
  item->done = std::move(done);
  queued_bytes_ += header.length;
  (header.length <= kSmallBytes ? small_ : large_).push_back(std::move(item));
  owner_.ScheduleFlush();
}

void TcpWire::Flush() {
  for (const auto& stream : streams_) {
    if (small_.empty() && large_.empty()) return;
    stream->Write();
    if (owner_.closing()) return;
  }
}

TcpWire::ItemQueue* TcpWire::NextQueue() {
  if (small_.empty() && large_.empty()) return nullptr;
  const bool small = large_.empty() || (!small_.empty() && small_in_a_row_ < kSmallInARow);
  small_in_a_row_ = small ? small_in_a_row_ + 1 : 0;
  return small ? &small_ : &large_;
}

bool TcpWire::NextFrame(OutFrame& frame) {
  ItemQueue* queue = NextQueue();
  if (queue == nullptr) return false;
  const std::shared_ptr<OutItem> item = queue->front();
  frame.item = item;
  frame.length = std::min(item->header.length - item->given_out, kSliceBytes);
  frame.cursor = item->cursor;
  DataHeader slice = item->header;
  slice.offset += item->given_out;
  slice.length = frame.length;
  frame.header = EncodeDataHeader(item->request_id, slice);
  item->given_out += frame.length;
  item->cursor.Skip(frame.length);
  ++item->frames_open;
  if (item->AllGivenOut()) queue->pop_front();
  return true;
}

void TcpWire::FrameSent(const OutFrame& frame) {
  OutItem& item = *frame.item;
  --item.frames_open;
  if (item.failed) return;
  queued_bytes_ -= frame.length;
  item.unsent -= frame.length;
  if (!item.AllGivenOut() || item.frames_open > 0) return;
  if (item.done) {
    owner_.Defer([done = std::move(item.done)] { done(Status::Ok()); });
  }
}

void TcpWire::FailItem(const std::shared_ptr<OutItem>& item, const Status& why) {
  if (std::exchange(item->failed, true)) return;
  queued_bytes_ -= item->unsent;
  for (const auto& stream : streams_) stream->DropFrames(*item);
  if (item->done) {
    owner_.Defer([done = std::move(item->done), why] { done(why); });
  }
}

void TcpWire::ReportFailure(const OutItem& item, Code code) {
  auto report = std::make_shared<OutItem>();
  report->request_id = item.request_id;
  report->header = item.header;
  report->header.status = static_cast<uint16_t>(code);
  report->header.length = 0;
  small_.push_front(std::move(report));
  owner_.ScheduleFlush();
}

void TcpWire::DropFailed() {
  const auto failed = [](const std::shared_ptr<OutItem>& item) { return item->failed; };
  std::erase_if(small_, failed);
  std::erase_if(large_, failed);
}

void TcpWire::BadMemory(const std::shared_ptr<OutItem>& item) {
  FailItem(item, Status(Code::kBadBuffer, "the source cannot be read"));
  DropFailed();
  ReportFailure(*item, Code::kBadBuffer);
}

std::vector<std::shared_ptr<OutItem>> TcpWire::LiveItems() const {
  std::vector<std::shared_ptr<OutItem>> items(small_.begin(), small_.end());
  items.insert(items.end(), large_.begin(), large_.end());
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
  for (const auto& item : items)
    FailItem(item, Status(Code::kCancelled, "abandoned by its sender"));
  DropFailed();
  for (const auto& item : items) ReportFailure(*item, Code::kCancelled);
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
  for (const auto& item : LiveItems()) FailItem(item, why);
  DropFailed();
  for (const auto& stream : streams_) stream->Stop();
  stopped();
}

}  // namespace penstock
