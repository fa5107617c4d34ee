// DataStream: one socket of the tcp wire, or of the local wire. Carries DATA frames in both
// directions, between the socket and the caller's memory without a copy of ours; on the local wire
// also frames that say where payload lies (see references.h), and the answers to those.
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
#include "common/transport/references.h"
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
  // The other side has read what the frame referred to, or says why it could not.
  virtual void FrameTaken(const OutFrame& frame, const Status& status) = 0;
  // The kernel could not read the memory of `item`.
  virtual void BadMemory(const std::shared_ptr<OutItem>& item) = 0;

 protected:
  ~FrameSource() = default;
};

class DataStream {
 public:
  // `references`: of the local wire, else null. Outlives the stream.
  DataStream(UniqueFd fd, WireOwner& owner, FrameSource& source, References* references)
      : fd_(std::move(fd)), owner_(owner), source_(source), references_(references) {}
  ~DataStream() { Stop(); }

  // Begins to watch the socket. Errors: kResourceExhausted. `keep` is held while it does.
  Status Start(std::shared_ptr<void> keep);
  // Tells the other side what it may read of our memory. Before anything else is sent.
  void Greet();
  // Closes the socket; nothing is called afterwards.
  void Stop();

  // Sends what the source has, as far as the socket takes it.
  void Write();
  // The frames of `item` that have begun go on with zeros, or, if they refer to its memory, as they
  // are; the others vanish.
  void DropFrames(const OutItem& item);
  // Whether the other side may be reading the memory of `item`.
  bool Refers(const OutItem& item) const;
  bool Refers(uint64_t request_id) const;
  // Appends the items of its frames, sent references included, each once for every frame.
  void CollectItems(std::vector<std::shared_ptr<OutItem>>& items) const;

  // Throws away what still arrives for the request.
  void AbandonIncoming(uint64_t request_id);
  // Tells the owner that the frame that is arriving failed, if one is.
  void FailIncoming(const Status& why);

  Status CheckProgress(MonotonicTime now, Duration patience) const;

 private:
  enum class Expect { kHeader, kExtra, kReferences, kPayload };

  void OnReady(uint32_t events);
  void Read();
  void ReadTurn();
  ssize_t Receive(std::span<iovec> iov);
  size_t ReadVector(std::span<iovec> iov, size_t& wanted);
  void Advance(size_t bytes);
  bool OnHeader();
  Status CheckHeader(const FrameHeader& frame, const DataHeader& data) const;
  void OnMemory();
  void OnTaken();
  void OnReferences();
  bool PeerIsThere() const;
  void AnswerReferences();
  void Queue(const RawDataHeader& header);
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
  References* const references_;

  // Incoming.
  Expect expect_ = Expect::kHeader;
  RawDataHeader raw_header_{};
  size_t header_have_ = 0;
  uint64_t extra_left_ = 0;  // Bytes of a longer DataHeader that we do not know.
  UniqueFd received_;        // That came along with what was read last.
  std::array<std::byte, kMaxReferences * sizeof(Reference)> raw_references_;
  size_t references_have_ = 0, references_want_ = 0;
  uint64_t referred_bytes_read_ = 0;  // In this turn.
  std::vector<Code> answers_;         // Of references read, not told yet.
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
  std::deque<OutFrame> referred_;  // Sent references that are not answered, in order.
  MonotonicTime last_taken_ = MonotonicNow();
  bool front_only_ = false;  // Looking for the frame whose memory is bad.
  bool want_write_ = false;
  MonotonicTime last_out_ = MonotonicNow();
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_DATA_STREAM_H_
