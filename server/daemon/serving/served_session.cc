#include "server/daemon/serving/served_session.h"

#include <algorithm>
#include <utility>

#include "common/base/units.h"
#include "common/log/log.h"
#include "common/protocol/messages.h"
#include "fmt/format.h"

namespace penstock {
namespace {

// Eager requests of full size whose data may wait for them.
constexpr uint32_t kEarlyRequests = 16;

std::shared_ptr<SessionRecord> MakeRecord(Session& session, uint64_t id, uint32_t data_thread,
                                          bool internal) {
  auto record = std::make_shared<SessionRecord>();
  record->id = id;
  record->info = session.info();
  record->data_thread = data_thread;
  record->internal = internal;
  record->opened = MonotonicNow();
  record->latest_message_ns = record->opened.time_since_epoch().count();
  return record;
}

}  // namespace

ServedSession::ServedSession(Session& session, Serving& serving, uint32_t data_thread,
                             bool internal)
    : session_(session),
      serving_(serving),
      counters_(internal ? serving.internal_counters : serving.counters),
      record_(MakeRecord(session, serving.next_owner.fetch_add(1), data_thread, internal)),
      owner_(static_cast<OwnerId>(record_->id)),
      namespaces_(serving.store, session.info().tenant),
      reservations_(serving.limits.max_reservations_per_session),
      early_(uint64_t{kEarlyRequests} * session.info().eager_bytes, serving.early) {
  counters_.sessions_opened.Add();
  counters_.sessions.Add(1);
  serving_.directory.Add(record_);
  if (record_->internal) return;
  PENSTOCK_LOG(kInfo, "session opened", {"peer", record_->info.peer_address},
               {"name", record_->info.client_name}, {"tenant", record_->info.tenant},
               {"software", record_->info.peer_software}, {"wire", record_->info.wire},
               {"thread", data_thread});
}

ServedSession::~ServedSession() {
  if (!closed_) OnClosed(Status(Code::kDisconnected));
}

void ServedSession::OnMessage(MessageType type, uint64_t request_id, ByteSpan body) {
  NoteActivity();
  if (type == MessageType::kCancel) return OnCancel(request_id);
  record_->requests.Add();
  if (request_id <= latest_request_) {
    // Two answers with one id could not be told apart, and the data of a request would be taken for
    // that of one that is over: the client is broken.
    session_.Close(Status(Code::kInvalidArgument,
                          fmt::format("request id {} after {}: the ids of a session must increase",
                                      request_id, latest_request_)));
    return;
  }
  latest_request_ = request_id;
  OnRequest(type, request_id, body);
  early_.Forget(request_id);
}

void ServedSession::OnRequest(MessageType type, uint64_t request_id, ByteSpan body) {
  if (serving_.draining.load(std::memory_order_relaxed)) {
    return Refuse(type, request_id, Status(Code::kDisconnected, "the daemon is shutting down"));
  }
  switch (type) {
    case MessageType::kFetch:
      return OnFetch(request_id, body);
    case MessageType::kStore:
      return OnStore(request_id, body);
    default:
      return OnSimple(type, request_id, body);
  }
}

void ServedSession::OnSimple(MessageType type, uint64_t request_id, ByteSpan body) {
  const MonotonicTime since = MonotonicNow();
  const Answer answer =
      AnswerSimpleRequest({serving_, counters_, namespaces_, reservations_, owner_}, type, body);
  session_.SendMessage(MessageType::kReply, request_id, answer.body);
  const auto held = static_cast<int64_t>(reservations_.size());
  record_->reservations.Add(held - record_->reservations.value());
  counters_.CountReply(KindOf(type), answer.code, since);
}

Result<InFlight::Slot> ServedSession::Admit() {
  const size_t window = session_.info().max_in_flight;
  const size_t mine = stores_.size() + fetches_.size();
  // A client's window has room again once it has cancelled a FETCH, of which the wire may still
  // have bytes: as much as that again.
  const size_t all = mine + cancelled_fetches_.size();
  if (mine >= window || all >= 2 * window) {
    return Status(Code::kBusy, fmt::format("{} requests of the session are in flight", all));
  }
  auto slot = serving_.in_flight.TryEnter();
  if (!slot) {
    return Status(Code::kBusy, fmt::format("{} requests are in flight in this daemon",
                                           serving_.in_flight.limit()));
  }
  return std::move(*slot);
}

void ServedSession::OnFetch(uint64_t request_id, ByteSpan body) {
  const auto request = FetchRequest::Decode(body);
  if (!request.ok()) return Refuse(MessageType::kFetch, request_id, request.status());
  const auto selection = Selection::Decode(request->selection);
  if (!selection.ok()) return Refuse(MessageType::kFetch, request_id, selection.status());
  auto slot = Admit();
  if (!slot.ok()) {
    counters_.fetch_refused[slot.status().code()].Add(request->items.size());
    return Refuse(MessageType::kFetch, request_id, slot.status());
  }
  if (request->reservation != 0 &&
      !reservations_.Holds(static_cast<ReservationId>(request->reservation), MonotonicNow())) {
    counters_.fetch_lost_reservations.Add();
  }
  auto job = std::make_shared<FetchJob>(
      FetchJob::Context{session_, serving_, counters_, record_}, request_id, std::move(*slot),
      [this](uint64_t bytes) {
        fetch_bytes_queued_ -= bytes;
        NoteActivity();
        Pump();
      },
      [this](uint64_t id) {
        fetches_.erase(id);
        cancelled_fetches_.erase(id);
      });
  fetches_.emplace(request_id, job);
  turns_.push_back(job);
  job->Start(*request, *selection, namespaces_);
  Pump();
}

void ServedSession::Pump() {
  while (!turns_.empty() && fetch_bytes_queued_ < serving_.limits.fetch_window_bytes) {
    const std::shared_ptr<FetchJob> job = turns_.front().lock();
    turns_.pop_front();
    if (job == nullptr) continue;
    const uint64_t bytes = job->SendNext();
    if (bytes == 0) continue;
    fetch_bytes_queued_ += bytes;
    turns_.push_back(job);
  }
}

Status ServedSession::CheckEager(const StoreRequest& request) const {
  uint64_t left = session_.info().eager_bytes;
  for (const StoreRequest::Item& item : request.items) {
    if (item.payload_bytes > left) {
      return Status(Code::kTooLarge,
                    fmt::format("an eager STORE carries at most {} bytes; ask for a grant",
                                session_.info().eager_bytes));
    }
    left -= item.payload_bytes;
  }
  return Status::Ok();
}

void ServedSession::OnStore(uint64_t request_id, ByteSpan body) {
  const auto request = StoreRequest::Decode(body);
  if (!request.ok()) return Refuse(MessageType::kStore, request_id, request.status());
  const Status eager_ok = request->eager ? CheckEager(*request) : Status::Ok();
  auto slot = eager_ok.ok() ? Admit() : Result<InFlight::Slot>(eager_ok);
  if (!slot.ok()) {
    counters_.store_refused[slot.status().code()].Add(request->items.size());
    return Refuse(MessageType::kStore, request_id, slot.status());
  }
  const auto job =
      std::make_shared<StoreJob>(StoreJob::Context{session_, serving_, counters_, record_, owner_},
                                 request_id, std::move(*slot), [this](uint64_t id) {
                                   const auto it = stores_.find(id);
                                   if (it->second->abandoned()) early_.Erase(id);
                                   stores_.erase(it);
                                 });
  stores_.emplace(request_id, job);
  job->Start(*request, namespaces_);
  if (request->eager) ReplayEarlyData(request_id, job);
}

void ServedSession::ReplayEarlyData(uint64_t request_id, const std::shared_ptr<StoreJob>& job) {
  const EarlyData::Claimed early = early_.Claim(request_id);
  for (const EarlyData::Frame& frame : early.landed) {
    Pieces pieces;
    if (job->Locate(frame.header, pieces)) {
      job->Deliver(frame.header, frame.span(), frame.status);
    } else {
      CountDiscarded(frame.header);
    }
  }
  for (const DataHeader& header : early.on_their_way) {
    Pieces pieces;
    if (!job->Locate(header, pieces)) early_.Disown(request_id, header);
  }
  for (const DataHeader& header : early.failed) job->OnDataFailed(header);
  if (early.lost) job->OnDataLost();
}

void ServedSession::OnCancel(uint64_t request_id) {
  counters_.cancels.Add();
  if (const auto job = FindStore(request_id)) return job->Cancel();
  const auto it = fetches_.find(request_id);
  if (it == fetches_.end()) return;  // Answered already, or never asked: nothing to do.
  const std::shared_ptr<FetchJob> job = it->second;
  fetches_.erase(it);
  cancelled_fetches_.emplace(request_id, job);
  job->Cancel();
}

void ServedSession::Refuse(MessageType type, uint64_t request_id, const Status& status) {
  const uint32_t retry = status.code() == Code::kBusy ? serving_.limits.retry_after_ms : 0;
  session_.SendMessage(MessageType::kReply, request_id,
                       EncodeReply(ReplyHead::From(type, status, retry)));
  counters_.CountReply(KindOf(type), status.code(), MonotonicNow());
}

std::shared_ptr<StoreJob> ServedSession::FindStore(uint64_t request_id) const {
  const auto it = stores_.find(request_id);
  return it == stores_.end() ? nullptr : it->second;
}

bool ServedSession::Locate(uint64_t request_id, const DataHeader& header, Pieces& pieces) {
  const auto job = FindStore(request_id);
  const bool wanted =
      job != nullptr ? job->Locate(header, pieces)
                     : request_id > latest_request_ && early_.Locate(request_id, header, pieces);
  if (!wanted) CountDiscarded(header);
  return wanted;
}

void ServedSession::CountDiscarded(const DataHeader& header) {
  counters_.data_discarded.Add();
  counters_.data_discarded_bytes.Add(header.length);
}

void ServedSession::OnData(uint64_t request_id, const DataHeader& header, const Status& status) {
  NoteActivity();
  const auto job = FindStore(request_id);
  if (early_.Holds(request_id, header)) {
    const auto frame = early_.OnData(request_id, header, status);
    if (frame && job != nullptr) job->Deliver(header, frame->span(), status);
  } else if (job != nullptr) {
    job->OnData(header, status);
  }
}

void ServedSession::OnDataFailed(uint64_t request_id, const DataHeader& header) {
  if (const auto job = FindStore(request_id)) {
    job->OnDataFailed(header);
  } else if (request_id > latest_request_) {
    early_.OnDataFailed(request_id, header);
  }
}

void ServedSession::OnClosed(const Status& why) {
  if (closed_) return;
  closed_ = true;
  turns_.clear();
  // Their destructors give everything back and count what was lost.
  stores_.clear();
  fetches_.clear();
  cancelled_fetches_.clear();
  serving_.store.ReleaseOwner(owner_);
  serving_.directory.Remove(record_->id);
  counters_.sessions_closed[why.code()].Add();
  counters_.sessions.Add(-1);
  if (record_->internal) return;
  PENSTOCK_LOG(kInfo, "session closed", {"peer", record_->info.peer_address},
               {"name", record_->info.client_name}, {"status", why},
               {"lasted", RoughDuration(MonotonicNow() - record_->opened)},
               {"requests", record_->requests.value()});
}

void ServedSession::NoteActivity() {
  record_->latest_message_ns.store(MonotonicNow().time_since_epoch().count(),
                                   std::memory_order_relaxed);
  record_->queued_bytes.store(session_.queued_bytes(), std::memory_order_relaxed);
}

}  // namespace penstock
