#include "server/daemon/serving/store_job.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/format/manifest.h"
#include "common/log/log.h"

namespace penstock {

// Everything that a commit needs when the job, and the session, may be gone.
struct StoreJob::Commit {
  ChunkStore& store;
  ServingCounters& counters;
  std::shared_ptr<SessionRecord> record;
  PendingChunk chunk;
  NamespaceId ns;
  MonotonicTime since;  // When its request came.
};

StoreJob::StoreJob(Context context, uint64_t request_id, InFlight::Slot slot,
                   OnFinished on_finished)
    : context_(std::move(context)),
      loop_(context_.session.loop()),
      request_id_(request_id),
      on_finished_(std::move(on_finished)),
      slot_(std::move(slot)) {
  context_.counters.stores_in_flight.Add(1);
  context_.record->in_flight.Add(1);
}

StoreJob::~StoreJob() {
  if (timer_armed_) loop_.CancelTimer(timer_);
  for (Item& item : items_) {
    if (item.state == State::kReceiving || item.state == State::kDoomed) {
      FailNow(item, item.state == State::kDoomed ? item.status : Code::kDisconnected);
    }
  }
  if (!finished_) {
    context_.counters.CountReply(RequestKind::kStore, Code::kDisconnected, since_);
  }
  context_.counters.stores_in_flight.Add(-1);
  context_.record->in_flight.Add(-1);
}

void StoreJob::Start(const StoreRequest& request, NamespaceView& namespaces) {
  const auto self = shared_from_this();
  ItemStatuses grant;
  grant.statuses.reserve(request.items.size());
  items_.reserve(request.items.size());
  for (const StoreRequest::Item& wanted : request.items) {
    Item& item = items_.emplace_back(wanted.payload_bytes);
    const Code code = BeginItem(request, wanted, namespaces, item);
    grant.statuses.push_back(code);
    if (code == Code::kOk) {
      ++open_;
      context_.counters.store_pending_items.Add(1);
    } else {
      item.state = State::kFinal;
      item.status = code;
      CountRefusal(code);
    }
  }
  if (!request.eager) {
    context_.session.SendMessage(MessageType::kGrant, request_id_, grant.Encode());
  }
  for (uint32_t i = 0; i < items_.size(); ++i) {
    if (items_[i].state == State::kReceiving && items_[i].ranges.total() == 0) CommitItem(i);
  }
  starting_ = false;
  if (open_ > 0) ArmDeadline(request.deadline_ms);
  MaybeFinish();
}

Code StoreJob::BeginItem(const StoreRequest& request, const StoreRequest::Item& wanted,
                         NamespaceView& namespaces, Item& item) {
  const NamespaceId ns = namespaces.Find(request.namespaces[wanted.ns]);
  if (ns == NamespaceId::kNone) return Code::kInvalidArgument;
  auto manifest = Manifest::Decode(wanted.manifest);
  if (!manifest.ok()) return manifest.status().code();
  if (manifest->TotalStoredBytes() != wanted.payload_bytes) return Code::kInvalidArgument;
  NewChunk chunk{.key = wanted.key,
                 .ns = ns,
                 .manifest = std::move(*manifest),
                 .parent = wanted.parent,
                 .replace = request.replace,
                 .owner = context_.owner};
  auto pending = context_.serving.store.Begin(std::move(chunk));
  if (!pending.ok()) return pending.status().code();
  item.ns = ns;
  item.chunk.emplace(std::move(*pending));
  return Code::kOk;
}

void StoreJob::CountRefusal(Code code) {
  if (code == Code::kAlreadyExists) {
    context_.counters.store_exists.Add();
  } else {
    context_.counters.store_refused[code].Add();
  }
}

void StoreJob::ArmDeadline(uint32_t deadline_ms) {
  const ServingLimits& limits = context_.serving.limits;
  Duration patience =
      deadline_ms == 0 ? limits.default_deadline : Duration(std::chrono::milliseconds(deadline_ms));
  patience = std::min(patience, limits.max_deadline) + limits.store_grace;
  timer_ = loop_.After(patience, [weak = weak_from_this()] {
    if (const auto job = weak.lock()) {
      job->timer_armed_ = false;
      job->GiveUp(Code::kDeadlineExceeded);
    }
  });
  timer_armed_ = true;
}

bool StoreJob::Locate(const DataHeader& header, Pieces& pieces) {
  if (given_up_ != Code::kOk || header.item >= items_.size()) return false;
  Item& item = items_[header.item];
  if (item.state != State::kReceiving || header.length == 0) return false;
  if (!item.ranges.Claim(header.offset, header.length) ||
      !AppendSlice(item.chunk->pieces(), header.offset, header.length, pieces)) {
    Doom(item, Code::kInvalidArgument);
    MaybeFinish();
    return false;
  }
  ++item.in_transit;
  return true;
}

void StoreJob::OnData(const DataHeader& header, const Status& status) {
  if (header.item >= items_.size()) return;
  Item& item = items_[header.item];
  if (item.in_transit == 0) return;
  --item.in_transit;
  if (item.state == State::kReceiving && !status.ok()) Doom(item, status.code());
  if (item.state == State::kReceiving) {
    item.landed += header.length;
    if (item.landed == item.ranges.total()) CommitItem(header.item);
  } else if (item.state == State::kDoomed && item.in_transit == 0) {
    FailNow(item, item.status);
  }
  MaybeFinish();
}

void StoreJob::OnDataFailed(const DataHeader& header) {
  if (header.item >= items_.size()) return;
  Item& item = items_[header.item];
  if (item.state != State::kReceiving) return;
  const Code code = CodeFromWire(header.status);
  Doom(item, code == Code::kOk ? Code::kInvalidArgument : code);
  MaybeFinish();
}

void StoreJob::Deliver(const DataHeader& header, ByteSpan bytes, const Status& status) {
  if (header.item >= items_.size()) return;
  Item& item = items_[header.item];
  Pieces pieces;
  if (given_up_ == Code::kOk && item.state == State::kReceiving && status.ok() &&
      AppendSlice(item.chunk->pieces(), header.offset, header.length, pieces)) {
    for (const iovec& piece : pieces) {
      std::memcpy(piece.iov_base, bytes.data(), piece.iov_len);
      bytes = bytes.subspan(piece.iov_len);
    }
  }
  OnData(header, status);
}

void StoreJob::OnDataLost() {
  for (Item& item : items_) {
    if (item.state == State::kReceiving) Doom(item, Code::kBusy);
  }
  MaybeFinish();
}

void StoreJob::CommitItem(uint32_t index) {
  Item& item = items_[index];
  item.state = State::kCommitting;
  const uint64_t bytes = item.ranges.total();
  auto commit =
      std::make_shared<Commit>(Commit{context_.serving.store, context_.counters, context_.record,
                                      std::move(*item.chunk), item.ns, since_});
  item.chunk.reset();
  if (bytes > context_.serving.limits.inline_commit_bytes) {
    const bool handed_over = context_.serving.workers.TrySubmit(
        [commit, index, weak = weak_from_this(), loop = &loop_]() mutable {
          const Code code = RunCommit(*commit).code();
          loop->Post([weak = std::move(weak), index, code] {
            if (const auto job = weak.lock()) job->OnCommitted(index, code);
          });
        });
    if (handed_over) return;
  }
  OnCommitted(index, RunCommit(*commit).code());
}

// The one place where the outcome of a commit is counted, whether or not anybody still waits.
Status StoreJob::RunCommit(Commit& commit) {
  const uint64_t bytes = commit.chunk.bytes();
  const ChunkKey key = commit.chunk.key();
  Status status = commit.store.Commit(std::move(commit.chunk));
  ServingCounters& counters = commit.counters;
  if (status.ok()) {
    counters.store_committed.Add();
    counters.store_committed_bytes.Add(bytes);
    counters.ns(commit.ns).committed.Add();
    counters.ns(commit.ns).committed_bytes.Add(bytes);
    commit.record->stored_bytes.Add(bytes);
  } else if (status.code() == Code::kAlreadyExists) {
    counters.store_exists.Add();
  } else {
    counters.store_failed[status.code()].Add();
    PENSTOCK_LOG(kWarn, "chunk not committed", {"op", "store"}, {"key", key.ToShortHex()},
                 {"bytes", bytes}, {"peer", commit.record->info.peer_address},
                 {"name", commit.record->info.client_name}, {"status", status},
                 {"elapsed_us", (MonotonicNow() - commit.since) / std::chrono::microseconds(1)});
  }
  counters.store_pending_items.Add(-1);
  return status;
}

void StoreJob::OnCommitted(uint32_t index, Code code) {
  Item& item = items_[index];
  item.state = State::kFinal;
  item.status = code;
  --open_;
  MaybeFinish();
}

void StoreJob::Doom(Item& item, Code code) {
  item.state = State::kDoomed;
  item.status = code;
  if (item.in_transit == 0) FailNow(item, code);
}

void StoreJob::FailNow(Item& item, Code code) {
  item.chunk.reset();
  item.state = State::kFinal;
  item.status = code;
  --open_;
  context_.counters.store_failed[code].Add();
  context_.counters.store_pending_items.Add(-1);
}

void StoreJob::GiveUp(Code why) {
  if (given_up_ != Code::kOk || finished_) return;
  const bool receiving = std::any_of(items_.begin(), items_.end(), [](const Item& item) {
    return item.state == State::kReceiving || item.state == State::kDoomed;
  });
  if (!receiving) return;  // Everything is there; the commits end by themselves.
  given_up_ = why;
  context_.session.Abandon(request_id_, [weak = weak_from_this()] {
    if (const auto job = weak.lock()) job->OnAbandoned();
  });
}

void StoreJob::OnAbandoned() {
  for (Item& item : items_) {
    if (item.state == State::kReceiving) FailNow(item, given_up_);
    if (item.state == State::kDoomed) FailNow(item, item.status);
  }
  MaybeFinish();
}

void StoreJob::MaybeFinish() {
  if (starting_ || open_ > 0 || finished_) return;
  finished_ = true;
  if (timer_armed_) loop_.CancelTimer(timer_);
  timer_armed_ = false;
  ItemStatuses statuses;
  statuses.statuses.reserve(items_.size());
  bool busy = false;
  for (const Item& item : items_) {
    statuses.statuses.push_back(item.status);
    busy |= item.status == Code::kBusy;
  }
  ReplyHead head{.request = MessageType::kStore};
  if (busy) head.retry_after_ms = context_.serving.limits.retry_after_ms;
  if (given_up_ == Code::kCancelled) {
    head =
        ReplyHead::From(MessageType::kStore, Status(Code::kCancelled, "cancelled by the client"));
    context_.session.SendMessage(MessageType::kReply, request_id_, EncodeReply(head));
  } else {
    context_.session.SendMessage(MessageType::kReply, request_id_, EncodeReply(head, statuses));
  }
  context_.counters.CountReply(RequestKind::kStore, head.status, since_);
  on_finished_(request_id_);
}

}  // namespace penstock
