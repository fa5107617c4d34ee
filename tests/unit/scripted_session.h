// ScriptedSession: a Session whose wire is the test: it keeps every message and frame, and finishes
// a SendData() or an Abandon() when the test says so. For the orders of events that a real wire
// shows once in a million.

#ifndef PENSTOCK_TESTS_UNIT_SCRIPTED_SESSION_H_
#define PENSTOCK_TESTS_UNIT_SCRIPTED_SESSION_H_

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/protocol/messages.h"
#include "common/transport/session.h"

namespace penstock {

class ScriptedSession final : public Session {
 public:
  struct Message {
    MessageType type;
    uint64_t request_id;
    std::vector<std::byte> body;
  };
  struct Frame {
    uint64_t request_id;
    DataHeader header;
    std::string bytes;
    SendDone done;
  };

  explicit ScriptedSession(EventLoop& loop) : loop_(loop) {
    info_.version = kProtocolVersion;
    info_.tenant = "default";
    info_.client_name = "scripted";
    info_.wire = "tcp";
    info_.max_in_flight = 8;
    info_.eager_bytes = 64u << 10;
    info_.max_chunk_bytes = 1u << 30;
  }

  // What the wire does by itself. Set on the loop, or before the first event.
  bool finish_sends_at_once = true;
  bool finish_abandons_at_once = true;
  SessionInfo& mutable_info() { return info_; }

  EventLoop& loop() override { return loop_; }
  const SessionInfo& info() const override { return info_; }

  void SendMessage(MessageType type, uint64_t request_id, ByteSpan body) override {
    MutexLock lock(mu_);
    messages_.push_back({type, request_id, {body.begin(), body.end()}});
    arrived_.SignalAll();
  }

  void SendData(uint64_t request_id, const DataHeader& header, std::span<const iovec> payload,
                SendDone done) override {
    Frame frame{request_id, header, {}, nullptr};
    for (const iovec& piece : payload) {
      frame.bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    }
    if (!finish_sends_at_once) frame.done = std::move(done);
    frames.push_back(std::move(frame));
    if (finish_sends_at_once) done(Status::Ok());
  }

  void Abandon(uint64_t request_id, std::function<void()> done) override {
    {
      MutexLock lock(mu_);
      ++abandon_count_;
      arrived_.SignalAll();
    }
    abandoned.push_back(request_id);
    if (finish_abandons_at_once) return done();
    held_abandons.push_back(std::move(done));
  }

  size_t queued_bytes() const override { return 0; }
  bool refers() const override { return false; }
  bool closing() const override { return closed_with.has_value(); }
  void Close(const Status& why) override { closed_with = why; }

  // Takes the oldest message for `request_id`, waiting for it up to ten seconds. From any thread
  // but the loop's.
  std::optional<Message> Take(uint64_t request_id) {
    const Deadline deadline = Deadline::After(std::chrono::seconds(10));
    MutexLock lock(mu_);
    for (;;) {
      for (auto it = messages_.begin(); it != messages_.end(); ++it) {
        if (it->request_id != request_id) continue;
        Message message = std::move(*it);
        messages_.erase(it);
        return message;
      }
      if (!arrived_.WaitUntil(mu_, deadline.at())) return std::nullopt;
    }
  }
  // Waits, up to ten seconds, until Abandon() has been called `count` times in all.
  bool WaitAbandons(int count) {
    const Deadline deadline = Deadline::After(std::chrono::seconds(10));
    MutexLock lock(mu_);
    while (abandon_count_ < count) {
      if (!arrived_.WaitUntil(mu_, deadline.at())) return false;
    }
    return true;
  }
  size_t waiting_messages() {
    MutexLock lock(mu_);
    return messages_.size();
  }

  // Only on the loop, or while it has nothing to do.
  std::vector<Frame> frames;
  std::vector<uint64_t> abandoned;
  std::vector<std::function<void()>> held_abandons;
  std::optional<Status> closed_with;

 private:
  EventLoop& loop_;
  SessionInfo info_;
  Mutex mu_;
  CondVar arrived_;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mu_);
  int abandon_count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_TESTS_UNIT_SCRIPTED_SESSION_H_
