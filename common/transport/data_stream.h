// DataStream: one socket of the tcp wire. Carries DATA frames only, in both directions, between the
// socket and the caller's memory without a copy of ours.
//
// Exactly one header is read ahead of the payload that it announces (together with the end of the
// payload before it, so that a steady stream costs one system call a frame); payload bytes are
// never in memory of ours.

#ifndef PENSTOCK_COMMON_TRANSPORT_DATA_STREAM_H_
#define PENSTOCK_COMMON_TRANSPORT_DATA_STREAM_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "common/base/deadline.h"
#include "common/transport/pieces.h"
#include "common/transport/send_queue.h"
#include "common/transport/socket.h"
#include "common/transport/wire.h"

namespace penstock {

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
