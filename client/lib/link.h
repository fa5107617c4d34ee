// Link: keeps one session with the daemon, and another one when that is lost.
//
// Losing the daemon is noticed at once when its sockets close, and by heartbeats when it is silent.
// The first try to reach it again follows at once, unless the session was one of a few moments;
// further ones after pauses that double up to ClientOptions::reconnect_max, each shortened at
// random so that many clients do not come together. For ClientOptions::patience after a loss the
// link counts as "coming back": what is asked meanwhile waits. After that it counts as down, and
// everything fails at once until a session is up again.
//
// Everything runs on the client's loop, but for state().

#ifndef PENSTOCK_CLIENT_LIB_LINK_H_
#define PENSTOCK_CLIENT_LIB_LINK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <random>
#include <string>

#include "client/lib/client.h"
#include "common/transport/endpoint.h"
#include "common/transport/event_loop.h"
#include "common/transport/session.h"

namespace penstock {

class Link {
 public:
  enum class State { kComingBack, kUp, kDown };

  struct Callbacks {
    // `restarted`: the daemon is another process than the last time.
    std::function<void(Session&, bool restarted)> on_up;
    // Nobody should wait for the link any more, and why; again with the reason of each attempt that
    // fails meanwhile.
    std::function<void(const Status&)> on_down;
  };

  // `events` get the session's events; they pass OnClosed() on to Closed().
  Link(EventLoop& loop, const ClientOptions& options, const Address& address, SessionEvents& events,
       Callbacks callbacks);

  void Start();
  // No session after this one, which is closed. True if there is one, whose Closed() is to come.
  bool Stop();
  void Closed(const Status& why);

  // From any thread.
  State state() const { return state_.load(std::memory_order_relaxed); }

  Session* session() { return session_; }
  // Why there is no session; kOk before the first try has failed.
  const Status& last_error() const { return last_error_; }
  uint64_t connects() const { return connects_; }
  uint64_t disconnects() const { return disconnects_; }

 private:
  void StartPatience();
  void Dial();
  void DialLater();
  void Up(Session& session);

  EventLoop& loop_;
  const ClientOptions& options_;
  const Address address_;
  SessionEvents& events_;
  const Callbacks callbacks_;
  const uint64_t incarnation_;

  std::atomic<State> state_ = State::kComingBack;
  bool stopped_ = false;
  Session* session_ = nullptr;
  MonotonicTime up_since_;
  Duration pause_{};  // Before the next try.
  EventLoop::TimerId patience_timer_ = 0;
  uint64_t daemon_incarnation_ = 0;
  Status last_error_;
  uint64_t connects_ = 0, disconnects_ = 0;
  std::minstd_rand random_;
};

}  // namespace penstock

#endif  // PENSTOCK_CLIENT_LIB_LINK_H_
