// Everything that moves no chunk bytes: match, touch, pin, drop, stat, release, ping, and the
// registration of memory.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "client/lib/client_impl.h"

namespace penstock {
namespace {

uint32_t Millis(Duration duration) {
  const auto millis = std::chrono::ceil<std::chrono::milliseconds>(
      std::clamp<Duration>(duration, Duration::zero(), Deadline::kMax));
  return static_cast<uint32_t>(millis.count());
}

Status NoNamespace() { return Status(Code::kInvalidArgument, "no namespace"); }

Status CheckGroups(const std::vector<MatchGroup>& groups) {
  if (groups.empty()) return Status(Code::kInvalidArgument, "no groups");
  if (groups.size() > kMaxGroups) {
    return Status(Code::kTooLarge, fmt::format("{} groups, at most {}", groups.size(), kMaxGroups));
  }
  size_t keys = 0;
  for (const MatchGroup& group : groups) {
    if (!group.ns.valid()) return NoNamespace();
    if (group.keys.size() != groups.front().keys.size()) {
      return Status(Code::kInvalidArgument, "every group must have the same number of keys");
    }
    keys += group.keys.size();
  }
  if (keys > kMaxItems) {
    return Status(Code::kTooLarge, fmt::format("{} keys, at most {}", keys, kMaxItems));
  }
  return Status::Ok();
}

Status ReadMatch(ByteSpan rest, OperationState& operation) {
  PENSTOCK_ASSIGN_OR_RETURN(MatchReply reply, DecodeMatchReply(rest));
  operation.mutable_match() = {.chunks = reply.matched_chunks,
                               .bytes = reply.matched_bytes,
                               .reservation = reply.reservation,
                               .details = std::move(reply.details)};
  return Status::Ok();
}

Status ReadNothing(ByteSpan /*rest*/, OperationState& /*operation*/) { return Status::Ok(); }

}  // namespace

OperationPtr ClientImpl::Match(std::vector<MatchGroup> groups, Duration reserve_ttl,
                               const Deadline& deadline, OnDone on_done) {
  Status refused;
  const OperationRef operation =
      NewOperation(OperationState::Kind::kOther, 0, deadline, std::move(on_done), refused);
  if (refused.ok()) refused = CheckGroups(groups);
  for (size_t i = 0; refused.ok() && i < groups.size(); ++i) refused = book_->Refusal(groups[i].ns);
  if (!refused.ok()) return Refuse(operation, refused);
  MatchRequest request;
  request.reserve_ttl_ms = Millis(reserve_ttl);
  request.want_details = true;
  for (MatchGroup& group : groups) {
    request.groups.push_back({.ns = group.ns.fingerprint(),
                              .window_chunks = group.window_chunks,
                              .keys = std::move(group.keys)});
    operation->namespaces.push_back(std::move(group.ns));
  }
  const auto encode = [request = std::move(request)](const OperationState& state) mutable {
    request.deadline_ms = state.deadline().LeftMillis();
    return request.Encode();
  };
  return RunOne(operation,
                std::make_shared<SimpleCall>(operation, MessageType::kMatch, encode, ReadMatch));
}

OperationPtr ClientImpl::RunKeys(MessageType type, const Namespace& ns, std::vector<ChunkKey> keys,
                                 Duration ttl, const Deadline& deadline) {
  Status refused;
  const OperationRef operation =
      NewOperation(OperationState::Kind::kOther, keys.size(), deadline, {}, refused);
  if (refused.ok() && !ns.valid()) refused = NoNamespace();
  if (refused.ok()) refused = book_->Refusal(ns);
  if (!refused.ok()) return Refuse(operation, refused);
  operation->namespaces.push_back(ns);
  std::vector<std::shared_ptr<Call>> calls;
  for (size_t first = 0; first < keys.size(); first += kMaxItems) {
    const size_t count = std::min<size_t>(keys.size() - first, kMaxItems);
    KeysRequest request;
    request.ttl_ms = Millis(ttl);
    request.ns = ns.fingerprint();
    request.keys.assign(keys.begin() + first, keys.begin() + first + count);
    const auto encode = [request = std::move(request)](const OperationState& state) mutable {
      request.deadline_ms = state.deadline().LeftMillis();
      return request.Encode();
    };
    const auto read = [first, count](ByteSpan rest, OperationState& state) {
      return ReadItemStatuses(rest, std::span(state.mutable_items()).subspan(first, count));
    };
    calls.push_back(std::make_shared<SimpleCall>(operation, type, encode, read, first, count));
  }
  Launch(operation);
  AddCalls(operation, std::move(calls));
  return Launched(operation);
}

OperationPtr ClientImpl::Touch(const Namespace& ns, std::vector<ChunkKey> keys,
                               const Deadline& deadline) {
  return RunKeys(MessageType::kTouch, ns, std::move(keys), {}, deadline);
}

OperationPtr ClientImpl::Pin(const Namespace& ns, std::vector<ChunkKey> keys, Duration ttl,
                             const Deadline& deadline) {
  return RunKeys(MessageType::kPin, ns, std::move(keys), ttl, deadline);
}

OperationPtr ClientImpl::Drop(const Namespace& ns, std::vector<ChunkKey> keys,
                              const Deadline& deadline) {
  return RunKeys(MessageType::kDrop, ns, std::move(keys), {}, deadline);
}

void ClientImpl::ReportDamage(const Fingerprint& ns, const ChunkKey& key) {
  ++counters_.checksum_failures;
  // Not at once: this is called while the session delivers.
  loop_->Post([this, request = KeysRequest{.if_damaged = true, .ns = ns, .keys = {key}}.Encode()] {
    if (link_->session() != nullptr) table_->SendStray(MessageType::kDrop, request);
  });
}

OperationPtr ClientImpl::Stat(const Namespace& ns, const ChunkKey& key, const Deadline& deadline) {
  Status refused;
  const OperationRef operation =
      NewOperation(OperationState::Kind::kOther, 0, deadline, {}, refused);
  if (refused.ok() && !ns.valid()) refused = NoNamespace();
  if (refused.ok()) refused = book_->Refusal(ns);
  if (!refused.ok()) return Refuse(operation, refused);
  operation->namespaces.push_back(ns);
  const StatRequest request{.ns = ns.fingerprint(), .key = key};
  const auto encode = [request](const OperationState&) { return request.Encode(); };
  const auto read = [](ByteSpan rest, OperationState& state) {
    PENSTOCK_ASSIGN_OR_RETURN(const StatReply reply, DecodeStatReply(rest));
    state.SetStat(reply);
    return Status::Ok();
  };
  return RunOne(operation,
                std::make_shared<SimpleCall>(operation, MessageType::kStat, encode, read));
}

OperationPtr ClientImpl::Release(uint64_t reservation, const Deadline& deadline) {
  Status refused;
  const OperationRef operation =
      NewOperation(OperationState::Kind::kOther, 0, deadline, {}, refused);
  if (!refused.ok()) return Refuse(operation, refused);
  const auto encode = [reservation](const OperationState&) {
    return ReleaseRequest{.reservation = reservation}.Encode();
  };
  return RunOne(operation, std::make_shared<SimpleCall>(operation, MessageType::kRelease, encode,
                                                        ReadNothing));
}

OperationPtr ClientImpl::Ping(const Deadline& deadline) {
  Status refused;
  const OperationRef operation =
      NewOperation(OperationState::Kind::kOther, 0, deadline, {}, refused);
  if (!refused.ok()) return Refuse(operation, refused);
  // A session answers PING itself. A release of nothing is answered by the daemon's data thread.
  const auto encode = [](const OperationState&) { return ReleaseRequest{}.Encode(); };
  return RunOne(operation, std::make_shared<SimpleCall>(operation, MessageType::kRelease, encode,
                                                        ReadNothing, 0, 0, Code::kFenced));
}

Result<uint64_t> ClientImpl::Register(void* memory, size_t bytes) {
  if (bytes == 0) return Status(Code::kBadBuffer, "no bytes to register");
  const iovec whole{memory, bytes};
  MemoryMap::Look look(memory_, MemoryMap::Access::kWrite);
  PENSTOCK_RETURN_IF_ERROR(look.Check({&whole, 1}));
  auto registration = std::make_shared<Registration>();
  registration->begin = reinterpret_cast<uintptr_t>(memory);
  registration->end = registration->begin + bytes;
  PENSTOCK_ASSIGN_OR_RETURN(
      registration->with_wires,
      MemoryRegistration::Create({static_cast<std::byte*>(memory), bytes}, {}));
  MutexLock lock(mu_);
  const uint64_t id = next_registration_++;
  registrations_.emplace(id, std::move(registration));
  return id;
}

Status ClientImpl::Unregister(uint64_t registration) {
  std::shared_ptr<Registration> found;
  {
    MutexLock lock(mu_);
    const auto it = registrations_.find(registration);
    if (it == registrations_.end()) {
      return Status(Code::kInvalidArgument, fmt::format("no registration {}", registration));
    }
    found = std::move(it->second);
    registrations_.erase(it);
  }
  found->gate.Close();
  found->with_wires.reset();
  return Status::Ok();
}

}  // namespace penstock
