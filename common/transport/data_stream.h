// DataStream: one socket of the tcp wire. Carries DATA frames only, in both directions, between the
// socket and the caller's memory without a copy of ours.
//
// Exactly one header is read ahead of the payload that it announces (together with the end of the
// payload before it, so that a steady stream costs one system call a frame); payload bytes are
// never in memory of ours.

#ifndef PENSTOCK_COMMON_TRANSPORT_DATA_STREAM_H_
#define PENSTOCK_COMMON_TRANSPORT_DATA_STREAM_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "common/base/deadline.h"
#include "common/transport/pieces.h"
#include "common/transport/socket.h"
#include "common/transport/wire.h"

namespace penstock {

// The two headers of a DATA frame as they travel.
inline constexpr size_t kDataHeaderBytes = sizeof(FrameHeader) + sizeof(DataHeader);
using RawDataHeader = std::array<std::byte, kDataHeaderBytes>;
RawDataHeader EncodeDataHeader(uint64_t request_id, const DataHeader& header);

// One SendData() under way. Shared by the frames that carry its slices.
struct OutItem {
  uint64_t request_id = 0;
  DataHeader header;
  Pieces pieces;
  PieceCursor cursor;        // At the first byte that no frame carries yet.
  uint64_t given_out = 0;    // Bytes before it.
  uint64_t unsent = 0;       // Bytes of frames that are not sent, given out or not.
  uint32_t frames_open = 0;  // Frames that carry a part of it and are not sent.
  bool failed = false;       // `done` was called; its memory is not touched any more.
  Session::SendDone done;

  bool AllGivenOut() const { return given_out == header.length; }
};

// A slice of an item, on one stream.
struct OutFrame {
  std::shared_ptr<OutItem> item;
  RawDataHeader header;
  uint64_t length = 0;  // Payload bytes.
  uint64_t sent = 0;    // Of header and payload.
  PieceCursor cursor;   // At the next payload byte to send.
  bool zeros = false;   // The rest of the payload comes from a page of zeros.

  uint64_t left() const { return kDataHeaderBytes + length - sent; }
};

// Where a stream's frames come from: the wire, which balances the streams.
class FrameSource {
 public:
  // The next frame to send, if any.
  virtual bool NextFrame(OutFrame& frame) = 0;
  // All of the frame is in the socket.
  virtual void FrameSent(const OutFrame& frame) = 0;
  // The kernel could not read the memory of `item`.
  virtual void BadMemory(const std::shared_ptr<OutItem>& item) = 0;

 protected:
  ~FrameSource() = default;
};

class DataStream {
 public:
  DataStream(UniqueFd fd, WireOwner& owner, FrameSource& source)
      : fd_(std::move(fd)), owner_(owner), source_(source) {}
  ~DataStream() { Stop(); }

  // Begins to watch the socket. Errors: kResourceExhausted. `keep` is held while it does.
  Status Start(std::shared_ptr<void> keep);
  // Closes the socket; nothing is called afterwards.
  void Stop();

  // Sends what the source has, as far as the socket takes it.
  void Write();
  // The frames of `item` that have begun go on with zeros; the others vanish.
  void DropFrames(const OutItem& item);
  // Appends the items of its frames, each once for every frame.
  void CollectItems(std::vector<std::shared_ptr<OutItem>>& items) const;

  // Throws away what still arrives for the request.
  void AbandonIncoming(uint64_t request_id);
  // Tells the owner that the frame that is arriving failed, if one is.
  void FailIncoming(const Status& why);

  Status CheckProgress(MonotonicTime now, Duration patience) const;

 private:
  enum class Expect { kHeader, kExtra, kPayload };

  void OnReady(uint32_t events);
  void Read();
  size_t ReadVector(std::span<iovec> iov, size_t& wanted);
  void Advance(size_t bytes);
  bool OnHeader();
  void BeginPayload();
  void EndPayload();
  void Fill();
  size_t WriteVector(std::span<iovec> iov, bool front_only, size_t& wanted) const;
  void OnSent(size_t bytes);
  void OnWriteFault();
  void Lose(const Status& why);
  void WantWrite(bool want);

  UniqueFd fd_;
  bool lost_ = false;  // The peer has closed it; the session is about to end.
  WireOwner& owner_;
  FrameSource& source_;

  // Incoming.
  Expect expect_ = Expect::kHeader;
  RawDataHeader raw_header_{};
  size_t header_have_ = 0;
  uint64_t extra_left_ = 0;  // Bytes of a longer DataHeader that we do not know.
  uint64_t request_id_ = 0;
  DataHeader data_;
  Pieces pieces_;
  PieceCursor cursor_;
  uint64_t payload_left_ = 0;
  bool discard_ = false;    // The rest of the payload goes nowhere.
  bool report_ = false;     // OnData() is due at its end...
  Status incoming_status_;  // ...with this.
  MonotonicTime last_in_ = MonotonicNow();

  // Outgoing.
  std::deque<OutFrame> frames_;
  bool front_only_ = false;  // Looking for the frame whose memory is bad.
  bool want_write_ = false;
  MonotonicTime last_out_ = MonotonicNow();
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_DATA_STREAM_H_
