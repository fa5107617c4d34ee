#include "client/lib/call_table.h"

#include <fmt/format.h>

#include <utility>

namespace penstock {
namespace {

// The status of a reply, with the time after which a busy daemon wants to be asked again.
Status StatusOf(const ReplyHead& head) {
  Status status = head.ToStatus();
  if (head.retry_after_ms == 0) return status;
  return status.Annotate(fmt::format("retry in {} ms", head.retry_after_ms));
}

}  // namespace

void CallTable::Attach(Session& session) {
  session_ = &session;
  store_queue_.Attach(session);
}

void CallTable::Add(std::shared_ptr<Call> call) {
  call->operation()->calls.push_back(call);
  queued_.push_back(std::move(call));
  SendQueued();
}

void CallTable::SendQueued() {
  // What waits when a session ends waits for the next one.
  while (session_ != nullptr && !session_->closing() && !queued_.empty() &&
         in_flight_.size() < session_->info().max_in_flight &&
         session_->queued_bytes() < kMaxUnsentBytes) {
    const std::shared_ptr<Call> call = std::move(queued_.front());
    queued_.pop_front();
    call->phase = Call::Phase::kSent;
    call->id = next_id_++;
    calls_.emplace(call->id, call);
    unanswered_.insert(call->id);
    in_flight_.insert(call->id);
    if (!silent_since_) silent_since_ = MonotonicNow();
    call->Send(*session_, [this, id = call->id] {
      if (const auto sent = Find(id, Call::Phase::kSent)) Settle(sent);
      SendQueued();
    });
  }
}

void CallTable::LeaveIfOver(uint64_t id) {
  if (!unanswered_.contains(id) && !calls_.contains(id)) in_flight_.erase(id);
}

std::shared_ptr<Call> CallTable::Find(uint64_t id, Call::Phase phase) const {
  const auto it = calls_.find(id);
  return it != calls_.end() && it->second->phase == phase ? it->second : nullptr;
}

void CallTable::Abort(const std::shared_ptr<Call>& call, const Status& why) {
  if (call->phase == Call::Phase::kQueued) {
    std::erase(queued_, call);
    call->stop_reason = why;
    return Finish(call);
  }
  if (call->phase != Call::Phase::kSent) return;
  session_->SendMessage(MessageType::kCancel, call->id, {});
  Stop(call, why);
  SendQueued();
}

void CallTable::Stop(const std::shared_ptr<Call>& call, const Status& why) {
  call->phase = Call::Phase::kStopping;
  call->stop_reason = why;
  if (!call->TouchesMemory()) return Finish(call);
  session_->Abandon(call->id, [this, id = call->id] {
    if (const auto stopped = Find(id, Call::Phase::kStopping)) Finish(stopped);
    SendQueued();
  });
}

void CallTable::Settle(const std::shared_ptr<Call>& call) {
  if (call->Decided()) Stop(call, Status(Code::kInternal));
}

void CallTable::Finish(const std::shared_ptr<Call>& call) {
  call->phase = Call::Phase::kOver;
  call->Fail(call->stop_reason);
  calls_.erase(call->id);
  LeaveIfOver(call->id);
  callbacks_.on_done(*call);
}

void CallTable::FailQueued(const Status& why) {
  for (const auto& call : std::exchange(queued_, {})) {
    call->stop_reason = why;
    Finish(call);
  }
}

void CallTable::AbortAll(const Status& why) {
  FailQueued(why);  // First, or they would be sent as others make room.
  std::vector<std::shared_ptr<Call>> sent;
  for (const auto& [id, call] : calls_) sent.push_back(call);
  for (const auto& call : sent) Abort(call, why);
}

void CallTable::OnMessage(MessageType type, uint64_t request_id, ByteSpan body) {
  if (type == MessageType::kReply) {
    OnReply(request_id, body);
  } else if (type == MessageType::kGrant) {
    if (const auto call = Find(request_id, Call::Phase::kSent)) {
      call->OnGrant(body);
      Settle(call);
    }
  }
  Heard();
  SendQueued();
}

void CallTable::OnReply(uint64_t id, ByteSpan body) {
  const Result<DecodedReply> reply = DecodeReply(body);
  if (!reply.ok()) return session_->Close(reply.status());
  unanswered_.erase(id);
  LeaveIfOver(id);
  const auto call = Find(id, Call::Phase::kSent);
  if (call == nullptr) return OnStrayReply(id, *reply);
  Status status = StatusOf(reply->head);
  if (status.ok()) status = call->OnReply(reply->rest);
  if (!status.ok()) return Stop(call, status);
  Settle(call);
}

// An answer that nobody waits for any more may have reserved something: it is given back.
void CallTable::OnStrayReply(uint64_t id, const DecodedReply& reply) {
  callbacks_.on_stray_reply(id, reply.head);
  if (reply.head.status != Code::kOk || reply.head.request != MessageType::kMatch) return;
  const Result<MatchReply> match = DecodeMatchReply(reply.rest);
  if (!match.ok() || match->reservation == 0) return;
  SendStray(MessageType::kRelease, ReleaseRequest{.reservation = match->reservation}.Encode());
}

uint64_t CallTable::SendStray(MessageType type, ByteSpan body) {
  session_->SendMessage(type, next_id_, body);
  return next_id_++;
}

void CallTable::Heard() {
  if (unanswered_.empty()) {
    silent_since_.reset();
  } else {
    silent_since_ = MonotonicNow();
  }
  callbacks_.on_heard();
}

Duration CallTable::Silence() const {
  return silent_since_ ? MonotonicNow() - *silent_since_ : Duration::zero();
}

bool CallTable::Locate(uint64_t request_id, const DataHeader& header, Pieces& pieces) {
  const auto call = Find(request_id, Call::Phase::kSent);
  if (call == nullptr) return false;
  if (call->Locate(header, pieces)) return true;
  // Not from inside the session's question.
  session_->loop().Post([this, request_id] {
    if (const auto refused = Find(request_id, Call::Phase::kSent)) Settle(refused);
    SendQueued();
  });
  return false;
}

void CallTable::OnData(uint64_t request_id, const DataHeader& header, const Status& status) {
  const auto it = calls_.find(request_id);
  if (it == calls_.end()) return;
  // OnClosed() ends it, and says so to the operation as a whole.
  if (!status.ok() && session_->closing()) return;
  const std::shared_ptr<Call> call = it->second;
  call->OnData(header, status);
  Heard();
  if (call->phase == Call::Phase::kSent) Settle(call);
  SendQueued();
}

void CallTable::OnDataFailed(uint64_t request_id, const DataHeader& header) {
  if (const auto call = Find(request_id, Call::Phase::kSent)) {
    call->OnDataFailed(header);
    Settle(call);
    SendQueued();
  }
}

void CallTable::OnClosed(const Status& why) {
  session_ = nullptr;
  store_queue_.Detach();
  unanswered_.clear();
  in_flight_.clear();
  silent_since_.reset();
  // Before any operation ends: who sees one end, and waits for the next session, gets the next.
  callbacks_.on_closed(why);
  const Status lost(Code::kDisconnected, why.ToString());
  std::vector<std::shared_ptr<Call>> sent;
  for (const auto& [id, call] : calls_) sent.push_back(call);
  for (const auto& call : sent) {
    if (call->phase == Call::Phase::kSent) call->stop_reason = lost;
    Finish(call);
  }
}

}  // namespace penstock
