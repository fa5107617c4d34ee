#include "common/transport/session_impl.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/transport/hello.h"
#include "common/transport/pieces.h"

namespace penstock {
namespace {

// Control messages are read into this and parsed in place; what is incomplete is copied out.
constexpr size_t kReadBytes = 64u << 10;
// On the heap: a thread_local array would be part of every thread's stack, and threads of other
// libraries with small stacks could not be started.
MutableByteSpan ReadBuffer() {
  thread_local const auto buffer = std::make_unique<std::byte[]>(kReadBytes);
  return {buffer.get(), kReadBytes};
}
// Reads of one control stream in one turn of the loop.
constexpr int kReadsPerTurn = 4;
// What a queued send costs us beside the caller's memory, for the queue limit.
constexpr size_t kItemCost = 256;

constexpr int kLastRounds = 1000;

// How long the peer's reason may take after its data streams have ended.
constexpr std::chrono::milliseconds kGoodbyeGrace{200};

// Types below this are the session's own.
constexpr uint8_t kFirstRequestType = 16;

}  // namespace

SessionImpl::~SessionImpl() = default;

void SessionImpl::OwnEvents(std::unique_ptr<SessionEvents> events) {
  owned_events_ = std::move(events);
  events_ = owned_events_.get();
}

void SessionImpl::Refuse(ByteSpan body) {
  state_ = State::kClosed;
  deferred_.clear();
  out_ = OutQueue();
  Welcome(body);
  [[maybe_unused]] const auto sent = out_.SendTo(control_.get());
  control_.Reset();
}

void SessionImpl::Discard(const Status& why) {
  events_ = nullptr;
  Close(why);
}

void SessionImpl::Start() {
  if (closing()) return;  // Its owner thought better of it.
  const auto self = shared_from_this();
  const Status status =
      loop_.Watch(control_.get(), EPOLLIN, [self](uint32_t ready) { self->OnReady(ready); });
  if (!status.ok()) return Close(status);
  last_received_ = MonotonicNow();
  Tick();
  if (!out_.empty() || wire_->queued_items() > 0) ScheduleFlush();
}

// ---------------------------------------------------------------------------------- incoming

void SessionImpl::OnReady(uint32_t ready) {
  if (closing()) return;
  if ((ready & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Read();
  if ((ready & EPOLLOUT) != 0 && !closing()) FlushControl();
}

void SessionImpl::Read() {
  for (int i = 0; i < kReadsPerTurn && !closing(); ++i) {
    const MutableByteSpan read_buffer = ReadBuffer();
    const ssize_t got = recv(control_.get(), read_buffer.data(), read_buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got < 0) {
      return Close(Status(Code::kDisconnected,
                          fmt::format("reading the control stream: {}", ErrnoText(errno))));
    }
    if (got == 0) return Close(Status(Code::kDisconnected, "the peer closed the connection"));
    NoteReceived();
    const auto bytes = ByteSpan(read_buffer).first(static_cast<size_t>(got));
    const Status status = assembler_.Feed(
        bytes, [this](const FrameHeader& header, ByteSpan body) { return OnFrame(header, body); });
    if (!status.ok()) return Close(status);
    CountMessages();
    if (static_cast<size_t>(got) < read_buffer.size()) return;
  }
}

bool SessionImpl::OnFrame(const FrameHeader& header, ByteSpan body) {
  const auto type = static_cast<MessageType>(header.type);
  if (header.type < kFirstRequestType) return OnSessionMessage(type, header, body);
  events_->OnMessage(type, header.request_id, body);
  return !closing();
}

bool SessionImpl::OnSessionMessage(MessageType type, const FrameHeader& header, ByteSpan body) {
  switch (type) {
    case MessageType::kPing:
      SendMessage(MessageType::kPong, header.request_id, {});
      break;
    case MessageType::kPong:
      break;  // That something came is all it says.
    case MessageType::kGoodbye:
      OnGoodbye(body);
      break;
    case MessageType::kHello:
    case MessageType::kHelloReply:
    case MessageType::kAttach:
    case MessageType::kAttachReply:
    case MessageType::kData:
      Close(Status(Code::kCorruptMessage,
                   fmt::format("a message of type {} in a session that has begun", header.type)));
      break;
    default:
      break;  // A newer peer's, which says nothing that version 1 must know.
  }
  return !closing();
}

void SessionImpl::OnGoodbye(ByteSpan body) {
  const auto verdict = ParseVerdict(body);
  if (!verdict.ok()) return Close(verdict.status());
  const Code code = CodeFromWire(verdict->status);
  if (code == Code::kOk) {
    return Close(Status(Code::kDisconnected, "the peer ended the session"));
  }
  Close(Status(code, fmt::format("the peer ended the session: {}", verdict->message)));
}

// ---------------------------------------------------------------------------------- outgoing

void SessionImpl::SendMessage(MessageType type, uint64_t request_id, ByteSpan body) {
  if (closing()) return;
  if (body.size() > FrameHeader::kMaxBodyBytes) {
    return Close(Status(Code::kInternal, fmt::format("a message of {} bytes; the limit is {}",
                                                     body.size(), FrameHeader::kMaxBodyBytes)));
  }
  if (out_.empty()) last_control_out_ = MonotonicNow();
  out_.Append(type, request_id, body);
  CheckQueueLimit();
  CountMessages();
  ScheduleFlush();
}

void SessionImpl::SendData(uint64_t request_id, const DataHeader& header,
                           std::span<const iovec> payload, SendDone done) {
  Status status = why_;
  if (!closing()) {
    const bool fits =
        TotalBytes(payload) == header.length && (header.status == 0 || header.length == 0);
    if (fits) {
      wire_->Send(request_id, header, payload, std::move(done));
      return CheckQueueLimit();
    }
    status = Status(Code::kInvalidArgument, "the pieces do not add up to the length of the data");
  }
  if (done) Defer([done = std::move(done), status] { done(status); });
}

void SessionImpl::Abandon(uint64_t request_id, std::function<void()> done) {
  if (closing()) {
    // The peer may be reading that memory until the wire has stopped.
    if (state_ != State::kClosed && done) after_stop_.push_back(std::move(done));
    return;
  }
  wire_->Abandon(request_id, std::move(done));
}

size_t SessionImpl::queued_bytes() const {
  return out_.size() + (wire_ ? wire_->queued_bytes() : 0);
}

void SessionImpl::CheckQueueLimit() {
  const size_t bytes = out_.size() + wire_->queued_items() * kItemCost;
  if (bytes <= limits_.max_queued_bytes) return;
  Close(Status(Code::kBusy, fmt::format("{} bytes wait for a peer that does not read", bytes)));
}

void SessionImpl::CountMessages() {
  if (closing()) return;
  if (message_share_.Resize(assembler_.held_bytes() + out_.held_bytes())) return;
  Close(Status(Code::kResourceExhausted,
               fmt::format("messages of all sessions take {} bytes, with this one's more than {}",
                           limits_.message_budget->bytes(), limits_.message_budget->max_bytes())));
}

void SessionImpl::ScheduleFlush() {
  if (std::exchange(flush_scheduled_, true)) return;
  loop_.Post([self = shared_from_this()] {
    self->flush_scheduled_ = false;
    self->Flush();
  });
}

void SessionImpl::Flush() {
  if (closing()) return;
  FlushControl();
  if (!closing()) wire_->Flush();
}

void SessionImpl::FlushControl() {
  if (!out_.empty()) {
    const auto sent = out_.SendTo(control_.get());
    if (!sent.ok()) {
      Read();  // Why the peer went away may be there.
      return Close(sent.status());
    }
    if (*sent > 0) last_control_out_ = MonotonicNow();
    CountMessages();
    if (closing()) return;
  }
  loop_.SetEvents(control_.get(), out_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

// ---------------------------------------------------------------------------------- life

void SessionImpl::Tick() {
  if (closing()) return;
  const MonotonicTime now = MonotonicNow();
  const Duration silence = now - last_received_;
  if (silence > limits_.peer_timeout) {
    return Close(Status(
        Code::kDisconnected,
        fmt::format("nothing came from {} for {} ms", info_.peer_address,
                    std::chrono::duration_cast<std::chrono::milliseconds>(silence).count())));
  }
  if (const auto since = assembler_.incomplete_since();
      since && now - *since > limits_.peer_timeout) {
    return Close(Status(Code::kDeadlineExceeded, "a message does not come to its end"));
  }
  if (!out_.empty() && now - last_control_out_ > limits_.peer_timeout) {
    return Close(Status(Code::kDisconnected, "the peer does not read its messages"));
  }
  if (const Status status = wire_->CheckProgress(now, limits_.peer_timeout); !status.ok()) {
    return Close(status);
  }
  if (silence >= limits_.heartbeat) SendMessage(MessageType::kPing, 0, {});
  const Duration period = std::min(limits_.heartbeat, limits_.peer_timeout / 2);
  timer_ = loop_.After(period, [self = shared_from_this()] { self->Tick(); });
}

void SessionImpl::Defer(std::function<void()> fn) {
  if (state_ == State::kClosed || !fn) return;
  deferred_.push_back(std::move(fn));
  if (std::exchange(deferred_scheduled_, true)) return;
  loop_.Post([self = shared_from_this()] { self->RunDeferred(); });
}

void SessionImpl::RunDeferred() {
  deferred_scheduled_ = false;
  const auto batch = std::exchange(deferred_, {});
  for (const auto& fn : batch) fn();
}

void SessionImpl::Close(const Status& why) {
  if (closing()) return;
  state_ = State::kClosing;
  why_ = why.ok() ? Status(Code::kDisconnected, "closed") : why;
  out_.Append(MessageType::kGoodbye, 0, EncodeVerdict(why));
  loop_.Post([self = shared_from_this()] { self->ShutDown(); });
}

void SessionImpl::ConnectionLost(const Status& why) {
  Read();
  if (closing()) return;
  loop_.After(kGoodbyeGrace, [weak = weak_from_this(), why] {
    if (const auto self = weak.lock()) self->Close(why);
  });
}

void SessionImpl::ShutDown() {
  // Best effort: a peer that is alive hears why, and gets the answers that were on their way.
  [[maybe_unused]] const auto sent = out_.SendTo(control_.get());
  shutdown(control_.get(), SHUT_WR);
  loop_.CancelTimer(timer_);
  loop_.Unwatch(control_.get());
  wire_->Shutdown(
      why_, [self = shared_from_this()] { self->loop_.Post([self] { self->FinishClose(); }); });
}

void SessionImpl::FinishClose() {
  // A completion may start something new, which is completed in turn; one that always does so is
  // not followed for ever.
  for (int i = 0; i < kLastRounds && !(deferred_.empty() && after_stop_.empty()); ++i) {
    RunDeferred();
    for (const auto& fn : std::exchange(after_stop_, {})) fn();
  }
  state_ = State::kClosed;
  control_.Reset();
  if (events_ != nullptr) events_->OnClosed(why_);
  owned_events_.reset();
  events_ = nullptr;
  if (on_gone_) std::exchange(on_gone_, nullptr)();
}

}  // namespace penstock
