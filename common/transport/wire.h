// Wire: what carries the bulk bytes of a session. The session decides what is sent and where it
// lands; a wire only moves it. One implementation for each name in HELLO.
//
// Threads: as the session's; everything runs on its loop.

#ifndef PENSTOCK_COMMON_TRANSPORT_WIRE_H_
#define PENSTOCK_COMMON_TRANSPORT_WIRE_H_

#include <functional>
#include <memory>
#include <span>

#include "common/base/deadline.h"
#include "common/base/status.h"
#include "common/transport/session.h"
#include "common/transport/socket.h"

namespace penstock {

// What a wire may ask of its session.
class WireOwner {
 public:
  virtual EventLoop& loop() = 0;
  virtual SessionEvents& events() = 0;
  // The session is ending: the wire calls no event any more.
  virtual bool closing() const = 0;
  // Longest DATA frame that the peer may send.
  virtual uint64_t max_data_bytes() const = 0;
  // Runs `fn` soon, in order, and before OnClosed().
  virtual void Defer(std::function<void()> fn) = 0;
  // The peer gave a sign of life.
  virtual void NoteReceived() = 0;
  // Ends the session.
  virtual void Close(const Status& why) = 0;
  // The wire's connection is gone: ends the session with `why`, or with the peer's own reason if
  // that is on its way on the control stream.
  virtual void ConnectionLost(const Status& why) = 0;
  // Calls the wire's Flush() soon.
  virtual void ScheduleFlush() = 0;

 protected:
  ~WireOwner() = default;
};

class Wire {
 public:
  virtual ~Wire() = default;

  // kInvalidArgument for a wire that uses no sockets, or has enough.
  virtual Status CanAttach() const = 0;
  // Adds a connected, non-blocking socket that has joined the session; `keep` is held while it is
  // watched. REQUIRES: CanAttach(). Errors: kResourceExhausted.
  virtual Status AttachStream(UniqueFd fd, std::shared_ptr<void> keep) = 0;
  // Data can go.
  virtual bool Ready() const = 0;

  // As in Session. Takes effect in Flush().
  virtual void Send(uint64_t request_id, const DataHeader& header, std::span<const iovec> payload,
                    Session::SendDone done) = 0;
  virtual void Abandon(uint64_t request_id, std::function<void()> done) = 0;
  virtual void Flush() = 0;
  virtual size_t queued_bytes() const = 0;
  virtual bool refers() const { return false; }  // As in Session.
  // Sends not yet done, each of which costs memory of ours.
  virtual size_t queued_items() const = 0;
  // kDisconnected when something that is due has not moved for `patience`.
  virtual Status CheckProgress(MonotonicTime now, Duration patience) const = 0;

  // Stops everything, completes every send and every delivery with `why`, through Defer(), and
  // then calls `stopped`, directly or later from the loop: after that the memory of others is not
  // touched any more. Called once.
  virtual void Shutdown(const Status& why, std::function<void()> stopped) = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_WIRE_H_
