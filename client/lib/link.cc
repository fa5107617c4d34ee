#include "client/lib/link.h"

#include <algorithm>
#include <utility>

#include "common/base/random.h"

namespace penstock {
namespace {

// A daemon whose sessions do not even live this long is not asked for the next one at once.
constexpr Duration kHealthyLife = std::chrono::seconds(1);

}  // namespace

Link::Link(EventLoop& loop, const ClientOptions& options, const Address& address,
           SessionEvents& events, Callbacks callbacks)
    : loop_(loop),
      options_(options),
      address_(address),
      events_(events),
      callbacks_(std::move(callbacks)),
      incarnation_(NewIncarnation()),
      random_(static_cast<uint32_t>(incarnation_)) {}

void Link::Start() {
  last_error_ = Status(Code::kDisconnected, address_.ToString() + " has not answered yet");
  StartPatience();
  Dial();
}

void Link::StartPatience() {
  patience_timer_ = loop_.After(options_.patience, [this] {
    if (state_ != State::kComingBack) return;
    state_ = State::kDown;
    callbacks_.on_down(last_error_);
  });
}

bool Link::Stop() {
  stopped_ = true;
  if (session_ == nullptr) return false;
  session_->Close(Status(Code::kCancelled, "the client is closing"));
  return true;
}

void Link::Dial() {
  if (stopped_) return;
  DialOptions dial;
  dial.address = address_;
  dial.wire = options_.wire;
  dial.streams = options_.streams;
  dial.incarnation = incarnation_;
  dial.tenant = options_.tenant;
  dial.client_name = options_.name;
  penstock::Dial(loop_, dial, Deadline::After(options_.connect_timeout), events_,
                 [this](Result<Session*> session) {
                   if (session.ok()) return Up(**session);
                   last_error_ = session.status();
                   if (state_ == State::kDown) callbacks_.on_down(last_error_);  // The news of it.
                   DialLater();
                 });
}

void Link::DialLater() {
  if (stopped_) return;
  pause_ = std::clamp<Duration>(pause_ * 2, options_.reconnect_min, options_.reconnect_max);
  std::uniform_int_distribution<int64_t> jitter(pause_.count() / 2, pause_.count());
  loop_.After(Duration(jitter(random_)), [this] { Dial(); });
}

void Link::Up(Session& session) {
  if (stopped_) return session.Close(Status(Code::kCancelled, "the client is closing"));
  session_ = &session;
  up_since_ = MonotonicNow();
  ++connects_;
  loop_.CancelTimer(patience_timer_);
  const uint64_t incarnation = session.info().peer_incarnation;
  const bool restarted = connects_ > 1 && incarnation != daemon_incarnation_;
  daemon_incarnation_ = incarnation;
  state_ = State::kUp;
  callbacks_.on_up(session, restarted);
}

void Link::Closed(const Status& why) {
  session_ = nullptr;
  last_error_ = why;
  ++disconnects_;
  state_ = State::kComingBack;
  if (stopped_) return;
  StartPatience();
  if (MonotonicNow() - up_since_ < kHealthyLife) return DialLater();
  pause_ = Duration::zero();
  Dial();
}

}  // namespace penstock
