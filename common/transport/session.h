// Session: one client's conversation with one daemon, the same class on both sides.
//
// A session begins on a stream socket (TCP or Unix). HELLO agrees on the version, on limits and on
// the wire that carries bulk bytes; from then on both sides exchange messages (small, in order, on
// the control stream) and data (bulk, on the wire, straight between the memory of the two sides).
// Everything above this interface is the same for every wire.
//
// Threads: a session belongs to one EventLoop. Every method and every callback runs on that loop's
// thread; other threads use loop().Post(). Nothing here blocks. No callback (event, SendDone, or
// the `done` of Abandon()) is called from inside a method of the session, so that callers need not
// expect to be re-entered.

#ifndef PENSTOCK_COMMON_TRANSPORT_SESSION_H_
#define PENSTOCK_COMMON_TRANSPORT_SESSION_H_

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/transport/event_loop.h"
#include "common/transport/frame.h"

namespace penstock {

// Memory as a list of pieces, in order.
using Pieces = absl::InlinedVector<iovec, 4>;

// What HELLO told about the other side, and what the two agreed on.
struct SessionInfo {
  uint16_t version = 0;           // Agreed protocol version.
  uint64_t peer_incarnation = 0;  // Random id that the peer's process drew at start.
  std::string peer_software;      // "penstock 0.1.0"
  std::string peer_address;       // As seen by the socket.
  std::string tenant;             // Client's claim; only set on the daemon's side.
  std::string client_name;        // For people: "vllm-worker-0"; only on the daemon's side.
  std::string wire;               // "local", "tcp" or "ucx"
  uint32_t streams = 0;           // Data streams of the tcp wire.
  uint32_t max_in_flight = 0;     // Requests that the daemon takes at a time from one session.
  uint32_t eager_bytes = 0;       // STOREs up to this many payload bytes need no grant.
  uint64_t max_chunk_bytes = 0;   // Longest value that the daemon takes.
};

// What a session tells its owner.
class SessionEvents {
 public:
  virtual ~SessionEvents() = default;

  // A message arrived. `body` is valid during the call.
  virtual void OnMessage(MessageType type, uint64_t request_id, ByteSpan body) = 0;

  // Data is about to arrive: appends to `pieces` where its header.length bytes go, exactly that
  // many, and returns true; or returns false to have them thrown away. The memory must stay valid
  // until OnData() for the same data or until an Abandon() of the request has called back. One
  // SendData() of the peer may arrive as several frames, in any order and at the same time, each
  // with its own offset: count bytes, not calls. After an Abandon() later frames of the request
  // still ask: refuse them.
  virtual bool Locate(uint64_t request_id, const DataHeader& header, Pieces& pieces) = 0;

  // The data of one DATA frame has landed (or failed: kBadBuffer when the pieces cannot be written
  // or do not add up to its length, kDisconnected). Called once for each Locate() that returned
  // true, unless the request was abandoned meanwhile. Not called for frames with length 0 and a
  // status, which come to OnDataFailed().
  virtual void OnData(uint64_t request_id, const DataHeader& header, const Status& status) = 0;

  // The sender could not deliver the item (a part of it may have arrived already, and be zeros).
  virtual void OnDataFailed(uint64_t request_id, const DataHeader& header) = 0;

  // The session is over; no callback follows, all pieces and all sent memory are free. Called
  // exactly once, also after Close(). Call no method of the session from here. `why` is what
  // Close() was told, or the peer's reason (its GOODBYE), or kDisconnected.
  virtual void OnClosed(const Status& why) = 0;
};

class Session {
 public:
  // Called once, when the memory of a SendData() is not read any more: kOk when the bytes are on
  // their way, kBadBuffer when they cannot be read, kCancelled after Abandon(), kInvalidArgument
  // when the pieces do not add up to header.length, else why the session ended.
  using SendDone = std::function<void(const Status&)>;

  virtual ~Session() = default;

  virtual EventLoop& loop() = 0;
  virtual const SessionInfo& info() const = 0;

  // Sends one message. Never blocks: what the socket does not take is queued, up to
  // SessionLimits::max_queued_bytes, beyond which the session closes with kBusy (the peer has
  // stopped reading).
  virtual void SendMessage(MessageType type, uint64_t request_id, ByteSpan body) = 0;

  // Sends header.length bytes from `payload` (whose pieces add up to it) on the wire, in one or
  // more frames. The memory must stay valid until `done` (which may be null). Frames of one session
  // may overtake messages and one another; bytes of one frame arrive in order. header.status != 0
  // with length 0 reports a failed item.
  virtual void SendData(uint64_t request_id, const DataHeader& header,
                        std::span<const iovec> payload, SendDone done) = 0;

  // Stops touching the caller's memory for `request_id`: data still arriving for it is thrown
  // away, data still to be sent is replaced by zeros or dropped, and the peer told that the item
  // failed (OnDataFailed(), kCancelled). `done` is called when that is true, after the SendDones
  // concerned, also when the session dies meanwhile. Bounded: a wire that cannot stop an operation
  // within a second, or ten if others move meanwhile, closes the session.
  virtual void Abandon(uint64_t request_id, std::function<void()> done) = 0;

  // Bytes accepted by SendMessage()/SendData() and not yet taken by the socket: for back-pressure.
  virtual size_t queued_bytes() const = 0;

  // It has begun to end: nothing more is sent, what is on its way fails, and OnClosed() follows.
  virtual bool closing() const = 0;

  // Whether long payloads are not sent, but read by the peer where they are (the local wire, as far
  // as the system lets the peer).
  virtual bool refers() const = 0;

  // Ends the session; OnClosed(why) follows from the loop, never from inside this call.
  virtual void Close(const Status& why) = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_SESSION_H_
