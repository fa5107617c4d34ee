// SendQueue: what a wire is to send, item by item, and the frames into which it cuts the items.

#ifndef PENSTOCK_COMMON_TRANSPORT_SEND_QUEUE_H_
#define PENSTOCK_COMMON_TRANSPORT_SEND_QUEUE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "common/transport/frame.h"
#include "common/transport/pieces.h"
#include "common/transport/session.h"

namespace penstock {

// The two headers of a DATA frame as they travel.
inline constexpr size_t kDataHeaderBytes = sizeof(FrameHeader) + sizeof(DataHeader);
// Most pieces of memory that one reference names.
inline constexpr size_t kMaxReferences = 64;
using RawDataHeader = std::array<std::byte, kDataHeaderBytes>;
// `extra_bytes`: of the body, behind the DataHeader.
RawDataHeader EncodeDataHeader(uint64_t request_id, const DataHeader& header,
                               MessageType type = MessageType::kData, uint32_t extra_bytes = 0);

// One SendData() under way. Shared by the frames that carry its slices.
struct OutItem {
  uint64_t request_id = 0;
  DataHeader header;
  Pieces pieces;
  PieceCursor cursor;        // At the first byte that no frame carries yet.
  uint64_t given_out = 0;    // Bytes before it.
  uint64_t unsent = 0;       // Bytes of frames that are not sent, given out or not.
  uint32_t frames_open = 0;  // Frames that carry a part of it and are not sent.
  bool failed = false;       // No frame of it begins any more.
  Status failure;            // Why.
  Session::SendDone done;

  bool AllGivenOut() const { return given_out == header.length; }
};

// A slice of an item, as it travels.
struct OutFrame {
  std::shared_ptr<OutItem> item;
  RawDataHeader header;
  uint64_t length = 0;  // Payload bytes.
  uint64_t sent = 0;    // Of header and what follows it.
  PieceCursor cursor;   // At the next payload byte to send.
  bool zeros = false;   // The rest of the payload comes from a page of zeros.
  // Where the payload lies, as it travels instead of it; empty for payload that does travel.
  std::vector<std::byte> references;

  bool is_reference() const { return !references.empty(); }
  uint64_t left() const {
    return kDataHeaderBytes + (is_reference() ? references.size() : length) - sent;
  }
};

class SendQueue {
 public:
  struct Options {
    uint64_t slice_bytes = 1u << 20;  // Longest payload of one frame.
    // Payloads above this are one piece of memory each, cut where a piece ends. 0: no matter.
    uint64_t scattered_bytes = 0;
    // Most pieces of memory in one frame. 0: no matter.
    size_t max_pieces = 0;
  };
  // Runs a function soon, in order.
  using Defer = std::function<void(std::function<void()>)>;

  SendQueue(const Options& options, Defer defer) : options_(options), defer_(std::move(defer)) {}

  void Push(uint64_t request_id, const DataHeader& header, std::span<const iovec> payload,
            Session::SendDone done);
  // The next frame to send, if there is one. Every frame comes back through FrameSent().
  bool NextFrame(OutFrame& frame);
  // All of the frame's memory is read. The item's `done` is called after its last.
  void FrameSent(const OutFrame& frame);

  // Marks `item` as failed: no frame of it begins any more. Its `done` is called with `why` when
  // its open frames have come back through FrameSent(); at once, with Complete(), by a wire that
  // stops touching its memory at once.
  void Fail(OutItem& item, const Status& why);
  void Complete(OutItem& item);
  // Forgets the failed ones among those that no frame has carried whole.
  void DropFailed();
  // Tells the peer, ahead of everything else, that the item will not come.
  void ReportFailure(const OutItem& item, Code code);

  // Those that no frame has carried whole yet.
  std::vector<std::shared_ptr<OutItem>> Waiting() const;
  bool empty() const { return small_.empty() && large_.empty(); }
  size_t items() const { return small_.size() + large_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  using Items = std::deque<std::shared_ptr<OutItem>>;

  Items* NextItems();
  uint64_t FrameLength(const OutItem& item) const;

  const Options options_;
  const Defer defer_;
  // What no frame has begun, or not carried whole. Small items are let by, so that they do not wait
  // for many big ones.
  Items small_;
  Items large_;
  int small_in_a_row_ = 0;
  size_t bytes_ = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_SEND_QUEUE_H_
