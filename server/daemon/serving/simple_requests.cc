#include "server/daemon/serving/simple_requests.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/log/log.h"
#include "common/protocol/messages.h"
#include "fmt/format.h"

namespace penstock {
namespace {

Answer Refuse(MessageType type, const Status& status) {
  return {status.code(), EncodeReply(ReplyHead::From(type, status))};
}

uint32_t Saturate(int64_t value) {
  return static_cast<uint32_t>(std::clamp<int64_t>(value, 0, std::numeric_limits<uint32_t>::max()));
}

Answer OpenNamespace(const SimpleContext& context, ByteSpan body) {
  const auto request = OpenNamespaceRequest::Decode(body);
  if (!request.ok()) return Refuse(MessageType::kOpenNamespace, request.status());
  return Refuse(MessageType::kOpenNamespace, request->close
                                                 ? context.namespaces.Close(request->descriptor)
                                                 : context.namespaces.Open(request->descriptor));
}

void AddDetails(const MatchResult& result, MatchReply& reply) {
  for (uint32_t g = 0; g < result.groups.size(); ++g) {
    const MatchResult::Group& group = result.groups[g];
    for (uint32_t i = 0; i < group.bytes.size(); ++i) {
      reply.details.push_back({.stored_bytes = group.bytes[i],
                               .group = g,
                               .index = group.first + i,
                               .tier = Tier::kDram});
    }
  }
}

// Empty when a namespace is not known: then nothing can match.
std::vector<KeyGroup> KeyGroups(const SimpleContext& context, const MatchRequest& request) {
  std::vector<KeyGroup> groups;
  for (const MatchRequest::Group& group : request.groups) {
    const NamespaceId ns = context.namespaces.Find(group.ns);
    if (ns == NamespaceId::kNone) return {};
    // A tag is what a reader must present, and who asks what is there need not be the reader.
    groups.push_back({.terms = {.ns = ns, .tag = std::nullopt},
                      .keys = group.keys,
                      .window = group.window_chunks});
  }
  return groups;
}

Status CheckMatch(const MatchRequest& request) {
  if (request.groups.empty()) {
    return Status(Code::kInvalidArgument, "a MATCH needs at least one group");
  }
  const size_t keys = request.groups.front().keys.size();
  for (const MatchRequest::Group& group : request.groups) {
    if (group.keys.size() == keys) continue;
    return Status(Code::kInvalidArgument,
                  fmt::format("every group of a MATCH has the same number of keys: found {} and {}",
                              keys, group.keys.size()));
  }
  return Status::Ok();
}

Answer Match(const SimpleContext& context, ByteSpan body) {
  const auto request = MatchRequest::Decode(body);
  if (!request.ok()) return Refuse(MessageType::kMatch, request.status());
  const Status valid = CheckMatch(*request);
  if (!valid.ok()) return Refuse(MessageType::kMatch, valid);
  for (const auto& group : request->groups) context.counters.match_keys.Add(group.keys.size());

  MatchReply reply;
  const std::vector<KeyGroup> groups = KeyGroups(context, *request);
  if (!groups.empty()) {
    const MonotonicTime now = MonotonicNow();
    std::optional<ReserveRequest> reserve;
    if (request->reserve_ttl_ms != 0 && context.reservations.HasRoom(now)) {
      reserve = ReserveRequest{context.owner, std::chrono::milliseconds(request->reserve_ttl_ms)};
    }
    auto result = context.serving.store.Match(groups, reserve);
    if (!result.ok()) return Refuse(MessageType::kMatch, result.status());
    reply.matched_chunks = result->matched;
    for (const auto& group : result->groups) {
      for (const uint64_t bytes : group.bytes) reply.matched_bytes += bytes;
      context.counters.matched_keys.Add(result->matched);
    }
    reply.reservation = static_cast<uint64_t>(result->reservation);
    if (result->reservation != ReservationId::kNone) {
      context.reservations.Add(result->reservation, now + result->reservation_ttl);
    }
    if (request->want_details) AddDetails(*result, reply);
  }
  return {Code::kOk, EncodeReply(ReplyHead{.request = MessageType::kMatch}, reply)};
}

// Terms for the requests that handle chunks without reading them.
ReadTerms AnyTerms(NamespaceId ns) { return {.ns = ns, .want_exact = false, .tag = std::nullopt}; }

Code PinOrUnpin(ChunkStore& store, const ChunkKey& key, const ReadTerms& terms, uint32_t ttl_ms) {
  return (ttl_ms == 0 ? store.Unpin(key, terms)
                      : store.Pin(key, terms, std::chrono::milliseconds(ttl_ms)))
      .code();
}

// More checks than these would keep commits waiting. Whoever is told kBusy loses nothing: the next
// reader reports the chunk again.
constexpr size_t kMaxQueuedChecks = 16;

// A reader saw a checksum fail. Only if the bytes in the arena are wrong does the chunk go: a
// reader with bad memory of its own must not empty the cache.
Code CheckLater(const SimpleContext& context, const ChunkKey& key, NamespaceId ns) {
  Result<ChunkRef> chunk = context.serving.store.Peek(key, AnyTerms(ns));
  if (!chunk.ok()) return chunk.status().code();
  WorkerPool& workers = context.serving.workers;
  if (workers.queued() >= kMaxQueuedChecks) return Code::kBusy;
  const bool queued =
      workers.TrySubmit([&store = context.serving.store, chunk = std::move(chunk).value()] {
        if (store.DropIfDamaged(chunk).ok()) return;
        PENSTOCK_LOG(kError, "a chunk's bytes changed in memory: dropped; check this host's memory",
                     {"op", "drop"}, {"key", chunk.key().ToShortHex()}, {"bytes", chunk.bytes()});
      });
  return queued ? Code::kOk : Code::kBusy;
}

// TOUCH, PIN and DROP.
Answer HandleKeys(const SimpleContext& context, MessageType type, ByteSpan body) {
  const auto request = KeysRequest::Decode(body);
  if (!request.ok()) return Refuse(type, request.status());
  ChunkStore& store = context.serving.store;
  const NamespaceId ns = context.namespaces.Find(request->ns);
  ItemStatuses reply;
  if (ns == NamespaceId::kNone) {
    reply.statuses.assign(request->keys.size(), Code::kMiss);
  } else if (type == MessageType::kTouch) {
    // Only what is whole from its head is refreshed: a tail without it is of no use.
    const size_t touched = store.Touch(request->keys, AnyTerms(ns));
    reply.statuses.assign(request->keys.size(), Code::kMiss);
    std::fill_n(reply.statuses.begin(), std::min(touched, reply.statuses.size()), Code::kOk);
  } else {
    reply.statuses.reserve(request->keys.size());
    for (const ChunkKey& key : request->keys) {
      Code code;
      if (type == MessageType::kPin) {
        code = PinOrUnpin(store, key, AnyTerms(ns), request->ttl_ms);
      } else if (request->if_damaged) {
        code = CheckLater(context, key, ns);
      } else {
        code = store.Drop(key, ns).code();
      }
      reply.statuses.push_back(code);
    }
  }
  return {Code::kOk, EncodeReply(ReplyHead{.request = type}, reply)};
}

Answer Release(const SimpleContext& context, ByteSpan body) {
  const auto request = ReleaseRequest::Decode(body);
  if (!request.ok()) return Refuse(MessageType::kRelease, request.status());
  const auto id = static_cast<ReservationId>(request->reservation);
  context.reservations.Remove(id);
  return Refuse(MessageType::kRelease, context.serving.store.ReleaseReservation(id, context.owner));
}

Answer Stat(const SimpleContext& context, ByteSpan body) {
  const auto request = StatRequest::Decode(body);
  if (!request.ok()) return Refuse(MessageType::kStat, request.status());
  const NamespaceId ns = context.namespaces.Find(request->ns);
  if (ns == NamespaceId::kNone) return Refuse(MessageType::kStat, Status(Code::kMiss));
  const auto info = context.serving.store.Stat(request->key, AnyTerms(ns));
  if (!info.ok()) return Refuse(MessageType::kStat, info.status());
  const auto idle = std::chrono::duration_cast<std::chrono::milliseconds>(info->idle);
  const StatReply reply{.stored_bytes = info->bytes,
                        .token_count = info->token_count,
                        .pins = info->pinned ? 1u : 0u,
                        .children = info->children,
                        .idle_ms = Saturate(idle.count()),
                        .tier = Tier::kDram,
                        .manifest = info->manifest};
  return {Code::kOk, EncodeReply(ReplyHead{.request = MessageType::kStat}, reply)};
}

}  // namespace

bool SessionReservations::HasRoom(MonotonicTime now) {
  if (ends_.size() < limit_) return true;
  absl::erase_if(ends_, [now](const auto& entry) { return entry.second <= now; });
  return ends_.size() < limit_;
}

bool SessionReservations::Holds(ReservationId id, MonotonicTime now) const {
  const auto it = ends_.find(id);
  return it != ends_.end() && now < it->second;
}

Answer AnswerSimpleRequest(const SimpleContext& context, MessageType type, ByteSpan body) {
  switch (type) {
    case MessageType::kOpenNamespace:
      return OpenNamespace(context, body);
    case MessageType::kMatch:
      return Match(context, body);
    case MessageType::kTouch:
    case MessageType::kPin:
    case MessageType::kDrop:
      return HandleKeys(context, type, body);
    case MessageType::kRelease:
      return Release(context, body);
    case MessageType::kStat:
      return Stat(context, body);
    default:
      return Refuse(type,
                    Status(Code::kUnimplemented,
                           fmt::format("request type {} is not known to this daemon (protocol "
                                       "version {})",
                                       static_cast<int>(type), kProtocolVersion)));
  }
}

}  // namespace penstock
