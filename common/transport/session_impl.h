// SessionImpl: the control stream of a session, its life, and the wire that it uses.

#ifndef PENSTOCK_COMMON_TRANSPORT_SESSION_IMPL_H_
#define PENSTOCK_COMMON_TRANSPORT_SESSION_IMPL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/transport/endpoint.h"
#include "common/transport/message_assembler.h"
#include "common/transport/out_queue.h"
#include "common/transport/socket.h"
#include "common/transport/wire.h"

namespace penstock {

// Kept alive by its own watches, timers and posted functions until it has closed. Everything on its
// loop's thread.
class SessionImpl final : public Session,
                          public std::enable_shared_from_this<SessionImpl>,
                          private WireOwner {
 public:
  // `control` is connected and past HELLO.
  SessionImpl(EventLoop& loop, UniqueFd control, SessionInfo info, SessionLimits limits)
      : loop_(loop),
        info_(std::move(info)),
        limits_(std::move(limits)),
        control_(std::move(control)),
        message_share_(limits_.message_budget) {}
  ~SessionImpl() override;

  // What the session is told about itself; called before Start().
  void SetEvents(SessionEvents& events) { events_ = &events; }
  void OwnEvents(std::unique_ptr<SessionEvents> events);
  void SetWire(std::unique_ptr<Wire> wire) { wire_ = std::move(wire); }
  void SetWireInfo(const std::string& wire, uint32_t streams) {
    info_.wire = wire;
    info_.streams = streams;
  }
  // Called after OnClosed() has returned.
  void SetOnGone(std::function<void()> on_gone) { on_gone_ = std::move(on_gone); }
  WireOwner& wire_owner() { return *this; }
  Wire& wire() { return *wire_; }

  // Puts `body` (HELLO_REPLY) in front of what the owner may have sent already.
  void Welcome(ByteSpan body) { out_.Prepend(MessageType::kHelloReply, 0, body); }
  // Ends a session that has not started and has no events: the peer gets `body` as HELLO_REPLY.
  void Refuse(ByteSpan body);
  // Ends a session that has not started; its events are told nothing.
  void Discard(const Status& why);
  // Begins to read and to send. On error the session is closed, and says so through OnClosed().
  void Start();

  // Session.
  EventLoop& loop() override { return loop_; }
  const SessionInfo& info() const override { return info_; }
  void SendMessage(MessageType type, uint64_t request_id, ByteSpan body) override;
  void SendData(uint64_t request_id, const DataHeader& header, std::span<const iovec> payload,
                SendDone done) override;
  void Abandon(uint64_t request_id, std::function<void()> done) override;
  size_t queued_bytes() const override;
  bool refers() const override { return wire_ && wire_->refers(); }
  void Close(const Status& why) override;
  bool closing() const override { return state_ != State::kOpen; }

 private:
  enum class State { kOpen, kClosing, kClosed };

  // WireOwner.
  SessionEvents& events() override { return *events_; }
  uint64_t max_data_bytes() const override { return info_.max_chunk_bytes; }
  void Defer(std::function<void()> fn) override;
  void NoteReceived() override { last_received_ = MonotonicNow(); }
  void ScheduleFlush() override;
  void ConnectionLost(const Status& why) override;

  void OnReady(uint32_t ready);
  void Read();
  bool OnFrame(const FrameHeader& header, ByteSpan body);
  bool OnSessionMessage(MessageType type, const FrameHeader& header, ByteSpan body);
  void OnGoodbye(ByteSpan body);
  void Flush();
  void FlushControl();
  void CheckQueueLimit();
  // Tells the budget what the messages take; without room the session closes.
  void CountMessages();
  void Tick();
  void RunDeferred();
  void ShutDown();
  void FinishClose();

  EventLoop& loop_;
  SessionInfo info_;
  const SessionLimits limits_;
  SessionEvents* events_ = nullptr;
  std::unique_ptr<SessionEvents> owned_events_;
  std::function<void()> on_gone_;

  UniqueFd control_;
  MessageAssembler assembler_;
  OutQueue out_;
  MessageBudget::Share message_share_;
  std::unique_ptr<Wire> wire_;

  State state_ = State::kOpen;
  Status why_;
  bool flush_scheduled_ = false;
  std::vector<std::function<void()>> deferred_;
  std::vector<std::function<void()>> after_stop_;  // Of Abandon() while it ends.
  bool deferred_scheduled_ = false;
  EventLoop::TimerId timer_ = 0;
  MonotonicTime last_received_ = MonotonicNow();
  MonotonicTime last_control_out_ = MonotonicNow();
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_SESSION_IMPL_H_
