#include "server/daemon/serving/fetch_job.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace penstock {
namespace {

// Appends the part [offset, offset + length) of the selected bytes of `chunk`.
void AppendSelected(const ChunkRef& chunk, const SelectedSegments& segments, uint64_t offset,
                    uint64_t length, Pieces& out) {
  if (segments.empty()) {
    AppendSlice(chunk.pieces(), offset, length, out);
    return;
  }
  for (const SelectedSegment& segment : segments) {
    if (offset >= segment.length) {
      offset -= segment.length;
      continue;
    }
    const uint64_t part = std::min(length, segment.length - offset);
    AppendSlice(chunk.pieces(), segment.offset + offset, part, out);
    length -= part;
    offset = 0;
    if (length == 0) return;
  }
}

}  // namespace

FetchJob::FetchJob(Context context, uint64_t request_id, InFlight::Slot slot, OnDrained on_drained,
                   OnFinished on_finished)
    : context_(std::move(context)),
      loop_(context_.session.loop()),
      request_id_(request_id),
      on_drained_(std::move(on_drained)),
      on_finished_(std::move(on_finished)),
      slot_(std::move(slot)) {
  context_.counters.fetches_in_flight.Add(1);
  context_.record->in_flight.Add(1);
}

FetchJob::~FetchJob() {
  if (timer_armed_) loop_.CancelTimer(timer_);
  for (Item& item : items_) {
    if (!item.chunk) continue;
    if (item.failure == Code::kOk) item.failure = Code::kDisconnected;
    Settle(item);
  }
  context_.counters.fetch_queued_bytes.Add(-static_cast<int64_t>(queued_bytes_));
  context_.counters.CountReply(RequestKind::kFetch, reply_, since_);
  context_.counters.fetches_in_flight.Add(-1);
  context_.record->in_flight.Add(-1);
}

void FetchJob::Start(const FetchRequest& request, const Selection& selection,
                     NamespaceView& namespaces) {
  std::vector<Result<ChunkRef>> found = Lookup(request, namespaces);
  FetchReply reply;
  reply.items.reserve(request.items.size());
  uint64_t manifest_bytes = 0;
  for (uint32_t i = 0; i < request.items.size(); ++i) {
    FetchReply::Item answer = Judge(request.items[i], std::move(found[i]), selection, i);
    if (answer.status == Code::kOk) {
      manifest_bytes += answer.manifest.size();
      if (manifest_bytes > context_.serving.limits.reply_manifest_bytes) {
        manifest_bytes -= answer.manifest.size();
        answer = {.status = Code::kTooLarge};
        items_.pop_back();
        context_.counters.fetch_refused[Code::kTooLarge].Add();
      }
    }
    reply.items.push_back(answer);
  }
  reply_ = Code::kOk;
  open_ = items_.size();
  context_.counters.fetch_held_chunks.Add(static_cast<int64_t>(open_));
  const ReplyHead head{.request = MessageType::kFetch};
  context_.session.SendMessage(MessageType::kReply, request_id_, EncodeReply(head, reply));
  for (Item& item : items_) {
    if (item.bytes == 0) Settle(item);
  }
  if (open_ > 0) ArmDeadline(request.deadline_ms);
  MaybeFinish();
}

// One call to the store for each run of items of the same namespace: a prompt's chunks come in
// order, and only a run that is whole from its head refreshes its tail.
std::vector<Result<ChunkRef>> FetchJob::Lookup(const FetchRequest& request,
                                               NamespaceView& namespaces) {
  std::vector<NamespaceId> ids;
  ids.reserve(request.namespaces.size());
  for (const Fingerprint& fingerprint : request.namespaces) {
    ids.push_back(namespaces.Find(fingerprint));
  }
  std::vector<Result<ChunkRef>> found;
  found.reserve(request.items.size());
  std::vector<ChunkKey> keys;
  for (size_t begin = 0; begin < request.items.size();) {
    const uint32_t ns = request.items[begin].ns;
    keys.clear();
    size_t end = begin;
    for (; end < request.items.size() && request.items[end].ns == ns; ++end) {
      keys.push_back(request.items[end].key);
    }
    begin = end;
    if (ids[ns] == NamespaceId::kNone) {
      found.insert(found.end(), keys.size(), Status(Code::kMiss));
      continue;
    }
    const ReadTerms terms{.ns = ids[ns], .want_exact = !request.accept_inexact, .tag = request.tag};
    for (auto& result : context_.serving.store.FindMany(keys, terms)) {
      context_.counters.ns(ids[ns]).missed.Add(result.status().code() == Code::kMiss ? 1 : 0);
      found.push_back(std::move(result));
    }
  }
  return found;
}

// What the reply says of one item; those with something to deliver join items_.
FetchReply::Item FetchJob::Judge(const FetchRequest::Item& wanted, Result<ChunkRef> found,
                                 const Selection& selection, uint32_t index) {
  const auto refuse = [this](Code code, uint64_t bytes = 0) {
    if (code == Code::kMiss) {
      context_.counters.fetch_missed.Add();
    } else {
      context_.counters.fetch_refused[code].Add();
    }
    return FetchReply::Item{.status = code, .payload_bytes = bytes};
  };
  if (!found.ok()) return refuse(found.status().code());
  Item item;
  item.chunk = std::move(*found);
  item.index = index;
  item.bytes = item.chunk.bytes();
  if (!selection.IsAll()) {
    auto segments = SelectSegments(item.chunk.manifest(), selection);
    if (!segments.ok()) return refuse(segments.status().code());
    item.bytes = SelectedBytes(*segments);
    item.segments = std::move(*segments);
  }
  if (item.bytes > wanted.capacity) return refuse(Code::kBufferTooSmall, item.bytes);
  if (!context_.record->internal) {  // The self-check's one chunk is nobody's burden.
    auto hold = context_.serving.fetching.Take(context_.record->id, item.chunk);
    if (!hold.ok()) return refuse(hold.status().code());
    item.hold = std::move(*hold);
  }
  const FetchReply::Item answer{
      .status = Code::kOk, .payload_bytes = item.bytes, .manifest = item.chunk.encoded_manifest()};
  items_.push_back(std::move(item));
  return answer;
}

void FetchJob::ArmDeadline(uint32_t deadline_ms) {
  const ServingLimits& limits = context_.serving.limits;
  const Duration patience =
      deadline_ms == 0 ? limits.default_deadline : Duration(std::chrono::milliseconds(deadline_ms));
  timer_ = loop_.After(std::min(patience, limits.max_deadline), [weak = weak_from_this()] {
    if (const auto job = weak.lock()) {
      job->timer_armed_ = false;
      job->GiveUp(Code::kDeadlineExceeded);
    }
  });
  timer_armed_ = true;
}

uint64_t FetchJob::SendNext() {
  while (next_ < items_.size() &&
         (items_[next_].failure != Code::kOk || items_[next_].sent == items_[next_].bytes)) {
    ++next_;
  }
  if (given_up_ != Code::kOk || next_ == items_.size()) return 0;
  Item& item = items_[next_];
  const uint64_t length = std::min(item.bytes - item.sent, context_.serving.limits.frame_bytes);
  Pieces pieces;
  AppendSelected(item.chunk, item.segments, item.sent, length, pieces);
  const DataHeader header{.item = item.index, .offset = item.sent, .length = length};
  item.sent += length;
  ++item.in_transit;
  queued_bytes_ += length;
  context_.counters.fetch_queued_bytes.Add(static_cast<int64_t>(length));
  context_.session.SendData(
      request_id_, header, pieces,
      [weak = weak_from_this(), position = next_, length](const Status& status) {
        if (const auto job = weak.lock()) {
          job->OnSent(position, length, status);
        }
      });
  return length;
}

void FetchJob::OnSent(size_t position, uint64_t bytes, const Status& status) {
  Item& item = items_[position];
  --item.in_transit;
  queued_bytes_ -= bytes;
  context_.counters.fetch_queued_bytes.Add(-static_cast<int64_t>(bytes));
  if (!status.ok() && item.failure == Code::kOk) {
    item.failure = given_up_ == Code::kOk ? status.code() : given_up_;
  }
  const bool all_given = item.sent == item.bytes || item.failure != Code::kOk;
  if (item.in_transit == 0 && all_given && item.chunk) Settle(item);
  MaybeFinish();
  on_drained_(bytes);
}

void FetchJob::Settle(Item& item) {
  ServingCounters& counters = context_.counters;
  if (item.failure == Code::kOk) {
    counters.fetch_delivered.Add();
    counters.fetch_delivered_bytes.Add(item.bytes);
    counters.ns(item.chunk.ns()).delivered.Add();
    counters.ns(item.chunk.ns()).delivered_bytes.Add(item.bytes);
    context_.record->fetched_bytes.Add(item.bytes);
  } else {
    counters.fetch_failed[item.failure].Add();
  }
  counters.fetch_held_chunks.Add(-1);
  item.hold = FetchBudget::Hold();
  item.chunk = ChunkRef();
  --open_;
}

void FetchJob::GiveUp(Code why) {
  if (given_up_ != Code::kOk || finished_) return;
  given_up_ = why;
  abandoning_ = true;
  context_.session.Abandon(request_id_, [weak = weak_from_this()] {
    if (const auto job = weak.lock()) job->OnAbandoned();
  });
}

void FetchJob::OnAbandoned() {
  abandoning_ = false;
  for (Item& item : items_) {
    if (!item.chunk) continue;
    if (item.failure == Code::kOk && (item.sent < item.bytes)) item.failure = given_up_;
    if (item.in_transit == 0) Settle(item);
  }
  MaybeFinish();
}

void FetchJob::MaybeFinish() {
  if (finished_ || open_ > 0 || abandoning_) return;
  finished_ = true;
  if (timer_armed_) loop_.CancelTimer(timer_);
  timer_armed_ = false;
  on_finished_(request_id_);
}

}  // namespace penstock
