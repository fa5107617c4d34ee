#include "common/transport/send_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace penstock {
namespace {

constexpr uint64_t kSmallBytes = 64u << 10;
// Small items that may pass a waiting big one before it gets its turn.
constexpr int kSmallInARow = 16;

}  // namespace

RawDataHeader EncodeDataHeader(uint64_t request_id, const DataHeader& header, MessageType type,
                               uint32_t extra_bytes) {
  RawDataHeader raw;
  const FrameHeader frame = MakeFrameHeader(type, request_id, sizeof(DataHeader) + extra_bytes);
  std::memcpy(raw.data(), &frame, sizeof(frame));
  std::memcpy(raw.data() + sizeof(frame), &header, sizeof(header));
  return raw;
}

void SendQueue::Push(uint64_t request_id, const DataHeader& header, std::span<const iovec> payload,
                     Session::SendDone done) {
  auto item = std::make_shared<OutItem>();
  item->request_id = request_id;
  item->header = header;
  item->pieces.assign(payload.begin(), payload.end());
  item->cursor = PieceCursor(item->pieces);
  item->unsent = header.length;
  item->done = std::move(done);
  bytes_ += header.length;
  (header.length <= kSmallBytes ? small_ : large_).push_back(std::move(item));
}

SendQueue::Items* SendQueue::NextItems() {
  if (empty()) return nullptr;
  const bool small = large_.empty() || (!small_.empty() && small_in_a_row_ < kSmallInARow);
  small_in_a_row_ = small ? small_in_a_row_ + 1 : 0;
  return small ? &small_ : &large_;
}

uint64_t SendQueue::FrameLength(const OutItem& item) const {
  const uint64_t most = std::min(item.header.length - item.given_out, options_.slice_bytes);
  if (options_.max_pieces > 0) {
    std::array<iovec, kMaxReferences> next;
    uint64_t described = most;
    item.cursor.Peek(described, std::span(next).first(options_.max_pieces));
    return described;
  }
  if (options_.scattered_bytes == 0 || most <= options_.scattered_bytes) return most;
  // One long piece, or short ones until the next long one begins.
  std::array<iovec, 64> next;
  uint64_t described = most;
  const size_t count = item.cursor.Peek(described, next);
  uint64_t length = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool too_long = length + next[i].iov_len > options_.scattered_bytes;
    if (i > 0 && too_long) break;
    length += next[i].iov_len;
    if (too_long) break;
  }
  return length;
}

bool SendQueue::NextFrame(OutFrame& frame) {
  Items* const items = NextItems();
  if (items == nullptr) return false;
  const std::shared_ptr<OutItem> item = items->front();
  frame.item = item;
  frame.length = FrameLength(*item);
  frame.cursor = item->cursor;
  DataHeader slice = item->header;
  slice.offset += item->given_out;
  slice.length = frame.length;
  frame.header = EncodeDataHeader(item->request_id, slice);
  item->given_out += frame.length;
  item->cursor.Skip(frame.length);
  ++item->frames_open;
  if (item->AllGivenOut()) items->pop_front();
  return true;
}

void SendQueue::FrameSent(const OutFrame& frame) {
  OutItem& item = *frame.item;
  --item.frames_open;
  if (!item.failed) {
    bytes_ -= frame.length;
    item.unsent -= frame.length;
  }
  if (item.frames_open == 0 && (item.failed || item.AllGivenOut())) Complete(item);
}

void SendQueue::Fail(OutItem& item, const Status& why) {
  if (std::exchange(item.failed, true)) return;
  bytes_ -= item.unsent;
  item.failure = why;
  if (item.frames_open == 0) Complete(item);
}

void SendQueue::Complete(OutItem& item) {
  if (!item.done) return;
  defer_([done = std::exchange(item.done, nullptr), why = item.failure] { done(why); });
}

void SendQueue::DropFailed() {
  const auto failed = [](const std::shared_ptr<OutItem>& item) { return item->failed; };
  std::erase_if(small_, failed);
  std::erase_if(large_, failed);
}

void SendQueue::ReportFailure(const OutItem& item, Code code) {
  auto report = std::make_shared<OutItem>();
  report->request_id = item.request_id;
  report->header = item.header;
  report->header.status = static_cast<uint16_t>(code);
  report->header.length = 0;
  small_.push_front(std::move(report));
}

std::vector<std::shared_ptr<OutItem>> SendQueue::Waiting() const {
  std::vector<std::shared_ptr<OutItem>> items(small_.begin(), small_.end());
  items.insert(items.end(), large_.begin(), large_.end());
  return items;
}

}  // namespace penstock
