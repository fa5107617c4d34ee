#include "common/protocol/messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/protocol/struct_codec.h"

namespace penstock {
namespace {

Status Corrupt(std::string_view what) {
  return Status(Code::kCorruptMessage, fmt::format("malformed {} message", what));
}

Status TooMany(std::string_view what, uint64_t count, uint64_t limit) {
  return Status(Code::kTooLarge,
                fmt::format("{} {} in one request, at most {} are allowed", count, what, limit));
}

void WriteKeys(ByteWriter& out, std::span<const Digest256> keys) {
  out.Append(std::as_bytes(keys));
}

// Reads `count` digests. The caller has bounded `count`.
std::vector<Digest256> ReadKeys(ByteReader& in, uint32_t count) {
  const ByteSpan raw = in.Take(size_t{count} * Digest256::kBytes);
  std::vector<Digest256> keys(raw.size() / Digest256::kBytes);
  if (!raw.empty()) std::memcpy(keys.data(), raw.data(), raw.size());
  return keys;
}

uint32_t CheckedCount(size_t n) { return static_cast<uint32_t>(n); }

enum FetchFlags : uint16_t { kFetchAcceptInexact = 1 };
enum StoreFlags : uint16_t { kStoreReplace = 1, kStoreEager = 2 };
enum KeysFlags : uint16_t { kIfDamaged = 1 };
enum NamespaceFlags : uint16_t { kNamespaceClose = 1 };
enum MatchFlags : uint16_t { kMatchDetails = 1 };

constexpr size_t kFetchItemBytes = 48;
constexpr size_t kStoreItemBytes = 88;
constexpr size_t kFetchReplyItemBytes = 16;
constexpr size_t kDetailBytes = 24;

// Namespaces and items, checked against the limits and against what the body can hold, so that a
// forged count never makes us reserve memory.
Status CheckCounts(uint32_t namespaces, uint32_t items, uint16_t stride, size_t least_stride,
                   const ByteReader& in, std::string_view what) {
  if (namespaces > kMaxNamespaces) return TooMany("namespaces", namespaces, kMaxNamespaces);
  if (items > kMaxItems) return TooMany("items", items, kMaxItems);
  const uint64_t least =
      uint64_t{namespaces} * Digest256::kBytes + uint64_t{items} * uint64_t{stride};
  if (stride < least_stride || least > in.remaining()) return Corrupt(what);
  return Status::Ok();
}

}  // namespace

std::vector<std::byte> OpenNamespaceRequest::Encode() const {
  StructWriter out;
  out.Fixed().U16(close ? kNamespaceClose : 0).U32(CheckedCount(descriptor.size()));
  return out.End().Append(descriptor).Release();
}

Result<OpenNamespaceRequest> OpenNamespaceRequest::Decode(ByteSpan body) {
  StructReader in(body);
  OpenNamespaceRequest request;
  request.close = (in.fixed().U16() & kNamespaceClose) != 0;
  const uint32_t size = in.fixed().U32();
  request.descriptor = in.rest().Take(size);
  if (!in.ok()) return Corrupt("OPEN_NAMESPACE");
  return request;
}

std::vector<std::byte> MatchRequest::Encode() const {
  StructWriter out;
  out.Fixed()
      .U16(want_details ? kMatchDetails : 0)
      .U32(deadline_ms)
      .U32(reserve_ttl_ms)
      .U32(CheckedCount(groups.size()))
      .U32(0);
  ByteWriter& rest = out.End();
  for (const Group& group : groups) {
    rest.Append(group.ns.span()).U32(group.window_chunks).U32(CheckedCount(group.keys.size()));
    WriteKeys(rest, group.keys);
  }
  return rest.Release();
}

Result<MatchRequest> MatchRequest::Decode(ByteSpan body) {
  StructReader in(body);
  MatchRequest request;
  request.want_details = (in.fixed().U16() & kMatchDetails) != 0;
  request.deadline_ms = in.fixed().U32();
  request.reserve_ttl_ms = in.fixed().U32();
  const uint32_t groups = in.fixed().U32();
  if (!in.ok()) return Corrupt("MATCH");
  if (groups > kMaxGroups) return TooMany("groups", groups, kMaxGroups);
  uint64_t total = 0;
  for (uint32_t i = 0; i < groups; ++i) {
    Group group;
    group.ns = in.rest().Read<Digest256>();
    group.window_chunks = in.rest().U32();
    const uint32_t keys = in.rest().U32();
    total += keys;
    if (total > kMaxItems) return TooMany("keys", total, kMaxItems);
    group.keys = ReadKeys(in.rest(), keys);
    if (!in.ok()) return Corrupt("MATCH");
    request.groups.push_back(std::move(group));
  }
  return request;
}

std::vector<std::byte> FetchRequest::Encode() const {
  StructWriter out;
  out.Fixed()
      .U16(accept_inexact ? kFetchAcceptInexact : 0)
      .U32(deadline_ms)
      .U64(reservation)
      .U64(tag)
      .U32(CheckedCount(items.size()))
      .U16(kFetchItemBytes)
      .U16(static_cast<uint16_t>(namespaces.size()))
      .U32(CheckedCount(selection.size()))
      .U32(0);
  ByteWriter& rest = out.End();
  WriteKeys(rest, namespaces);
  for (const Item& item : items) {
    rest.Append(item.key.span()).U64(item.capacity).U32(item.ns).U32(0);
  }
  return rest.Append(selection).Release();
}

Result<FetchRequest> FetchRequest::Decode(ByteSpan body) {
  StructReader in(body);
  FetchRequest request;
  request.accept_inexact = (in.fixed().U16() & kFetchAcceptInexact) != 0;
  request.deadline_ms = in.fixed().U32();
  request.reservation = in.fixed().U64();
  request.tag = in.fixed().U64();
  const uint32_t count = in.fixed().U32();
  const uint16_t stride = in.fixed().U16();
  const uint16_t namespaces = in.fixed().U16();
  const uint32_t selection = in.fixed().U32();
  if (!in.ok()) return Corrupt("FETCH");
  PENSTOCK_RETURN_IF_ERROR(
      CheckCounts(namespaces, count, stride, kFetchItemBytes, in.rest(), "FETCH"));
  request.namespaces = ReadKeys(in.rest(), namespaces);
  request.items.resize(count);
  for (Item& item : request.items) {
    ByteReader one(in.rest().Take(stride));
    item.key = one.Read<Digest256>();
    item.capacity = one.U64();
    item.ns = one.U32();
    if (item.ns >= namespaces) return Corrupt("FETCH");
  }
  request.selection = in.rest().Take(selection);
  if (!in.ok()) return Corrupt("FETCH");
  return request;
}

std::vector<std::byte> StoreRequest::Encode() const {
  StructWriter out;
  out.Fixed()
      .U16(static_cast<uint16_t>((replace ? kStoreReplace : 0) | (eager ? kStoreEager : 0)))
      .U32(deadline_ms)
      .U32(CheckedCount(items.size()))
      .U16(kStoreItemBytes)
      .U16(static_cast<uint16_t>(namespaces.size()));
  ByteWriter& rest = out.End();
  WriteKeys(rest, namespaces);
  for (const Item& item : items) {
    rest.Append(item.key.span())
        .U64(item.payload_bytes)
        .U32(item.ns)
        .U32(CheckedCount(item.manifest.size()))
        .U8(item.parent.has_value() ? 1 : 0)
        .U8(0)
        .U16(0)
        .U32(0)
        .Append(item.parent.value_or(ChunkKey{}).span());
  }
  for (const Item& item : items) rest.Append(item.manifest);
  return rest.Release();
}

Result<StoreRequest> StoreRequest::Decode(ByteSpan body) {
  StructReader in(body);
  StoreRequest request;
  const uint16_t flags = in.fixed().U16();
  request.replace = (flags & kStoreReplace) != 0;
  request.eager = (flags & kStoreEager) != 0;
  request.deadline_ms = in.fixed().U32();
  const uint32_t count = in.fixed().U32();
  const uint16_t stride = in.fixed().U16();
  const uint16_t namespaces = in.fixed().U16();
  if (!in.ok()) return Corrupt("STORE");
  PENSTOCK_RETURN_IF_ERROR(
      CheckCounts(namespaces, count, stride, kStoreItemBytes, in.rest(), "STORE"));
  request.namespaces = ReadKeys(in.rest(), namespaces);
  request.items.resize(count);
  std::vector<uint32_t> manifest_bytes(count);
  for (uint32_t i = 0; i < count; ++i) {
    Item& item = request.items[i];
    ByteReader one(in.rest().Take(stride));
    item.key = one.Read<Digest256>();
    item.payload_bytes = one.U64();
    item.ns = one.U32();
    manifest_bytes[i] = one.U32();
    const bool has_parent = (one.U8() & 1) != 0;
    one.Take(7);
    const auto parent = one.Read<Digest256>();
    if (has_parent) item.parent = parent;
    if (item.ns >= namespaces) return Corrupt("STORE");
  }
  for (uint32_t i = 0; i < count; ++i) {
    request.items[i].manifest = in.rest().Take(manifest_bytes[i]);
  }
  if (!in.ok()) return Corrupt("STORE");
  return request;
}

void ItemStatuses::EncodeTo(ByteWriter& out) const {
  out.U32(CheckedCount(statuses.size()));
  for (const Code code : statuses) out.U16(static_cast<uint16_t>(code));
}

std::vector<std::byte> ItemStatuses::Encode() const {
  ByteWriter out;
  EncodeTo(out);
  return out.Release();
}

Result<ItemStatuses> ItemStatuses::Decode(ByteSpan bytes) {
  ByteReader in(bytes);
  const uint32_t count = in.U32();
  if (count > kMaxItems) return TooMany("items", count, kMaxItems);
  if (uint64_t{count} * sizeof(uint16_t) > in.remaining()) return Corrupt("item status");
  ItemStatuses decoded;
  decoded.statuses.reserve(count);
  for (uint32_t i = 0; i < count; ++i) decoded.statuses.push_back(CodeFromWire(in.U16()));
  if (!in.ok()) return Corrupt("item status");
  return decoded;
}

std::vector<std::byte> KeysRequest::Encode() const {
  StructWriter out;
  out.Fixed()
      .U16(if_damaged ? kIfDamaged : 0)
      .U32(deadline_ms)
      .U32(ttl_ms)
      .U32(CheckedCount(keys.size()))
      .Append(ns.span());
  WriteKeys(out.End(), keys);
  return out.End().Release();
}

Result<KeysRequest> KeysRequest::Decode(ByteSpan body) {
  StructReader in(body);
  KeysRequest request;
  request.if_damaged = (in.fixed().U16() & kIfDamaged) != 0;
  request.deadline_ms = in.fixed().U32();
  request.ttl_ms = in.fixed().U32();
  const uint32_t count = in.fixed().U32();
  request.ns = in.fixed().Read<Digest256>();
  if (!in.ok()) return Corrupt("key list");
  if (count > kMaxItems) return TooMany("keys", count, kMaxItems);
  request.keys = ReadKeys(in.rest(), count);
  if (!in.ok()) return Corrupt("key list");
  return request;
}

std::vector<std::byte> ReleaseRequest::Encode() const {
  StructWriter out;
  out.Fixed().U16(0).U32(0).U64(reservation);
  return out.End().Release();
}

Result<ReleaseRequest> ReleaseRequest::Decode(ByteSpan body) {
  StructReader in(body);
  in.fixed().Take(6);
  const ReleaseRequest request{in.fixed().U64()};
  if (!in.ok()) return Corrupt("RELEASE");
  return request;
}

std::vector<std::byte> StatRequest::Encode() const {
  StructWriter out;
  out.Fixed().U16(0).U32(0).Append(ns.span()).Append(key.span());
  return out.End().Release();
}

Result<StatRequest> StatRequest::Decode(ByteSpan body) {
  StructReader in(body);
  in.fixed().Take(6);
  StatRequest request;
  request.ns = in.fixed().Read<Digest256>();
  request.key = in.fixed().Read<Digest256>();
  if (!in.ok()) return Corrupt("STAT");
  return request;
}

ReplyHead ReplyHead::From(MessageType request, const Status& status, uint32_t retry_after_ms) {
  return ReplyHead{request, status.code(), retry_after_ms, status.message()};
}

namespace {

ByteWriter WriteHead(const ReplyHead& head) {
  const size_t text = std::min<size_t>(head.message.size(), kMaxMessageText);
  StructWriter out;
  out.Fixed()
      .U8(static_cast<uint8_t>(head.request))
      .U8(0)
      .U16(static_cast<uint16_t>(head.status))
      .U16(static_cast<uint16_t>(text))
      .U32(head.retry_after_ms);
  out.End().Append(AsBytes(std::string_view(head.message).substr(0, text)));
  return std::move(out.End());
}

}  // namespace

std::vector<std::byte> EncodeReply(const ReplyHead& head) { return WriteHead(head).Release(); }

std::vector<std::byte> EncodeReply(const ReplyHead& head, const MatchReply& reply) {
  ByteWriter out = WriteHead(head);
  StructWriter body(std::move(out));
  body.Fixed()
      .U16(kDetailBytes)
      .U32(reply.matched_chunks)
      .U64(reply.matched_bytes)
      .U64(reply.reservation)
      .U32(CheckedCount(reply.details.size()));
  ByteWriter& rest = body.End();
  for (const MatchReply::Detail& d : reply.details) {
    rest.U64(d.stored_bytes).U32(d.group).U32(d.index).U8(static_cast<uint8_t>(d.tier));
    rest.U8(0).U16(0).U32(0);
  }
  return rest.Release();
}

std::vector<std::byte> EncodeReply(const ReplyHead& head, const FetchReply& reply) {
  StructWriter body(WriteHead(head));
  body.Fixed().U16(kFetchReplyItemBytes).U32(CheckedCount(reply.items.size()));
  ByteWriter& rest = body.End();
  for (const FetchReply::Item& item : reply.items) {
    rest.U16(static_cast<uint16_t>(item.status)).U16(0);
    rest.U32(CheckedCount(item.manifest.size())).U64(item.payload_bytes);
  }
  for (const FetchReply::Item& item : reply.items) rest.Append(item.manifest);
  return rest.Release();
}

std::vector<std::byte> EncodeReply(const ReplyHead& head, const ItemStatuses& reply) {
  ByteWriter out = WriteHead(head);
  reply.EncodeTo(out);
  return out.Release();
}

std::vector<std::byte> EncodeReply(const ReplyHead& head, const StatReply& reply) {
  StructWriter body(WriteHead(head));
  body.Fixed()
      .U8(static_cast<uint8_t>(reply.tier))
      .U8(0)
      .U64(reply.stored_bytes)
      .U32(reply.token_count)
      .U32(reply.pins)
      .U32(reply.children)
      .U32(reply.idle_ms)
      .U32(CheckedCount(reply.manifest.size()));
  return body.End().Append(reply.manifest).Release();
}

Result<DecodedReply> DecodeReply(ByteSpan body) {
  StructReader in(body);
  DecodedReply decoded;
  decoded.head.request = static_cast<MessageType>(in.fixed().U8());
  in.fixed().U8();
  decoded.head.status = CodeFromWire(in.fixed().U16());
  const uint16_t text = in.fixed().U16();
  decoded.head.retry_after_ms = in.fixed().U32();
  decoded.head.message = AsText(in.rest().Take(text)).substr(0, kMaxMessageText);
  if (!in.ok()) return Corrupt("REPLY");
  decoded.rest = in.rest().Take(in.rest().remaining());
  return decoded;
}

Result<MatchReply> DecodeMatchReply(ByteSpan bytes) {
  StructReader in(bytes);
  MatchReply reply;
  const uint16_t stride = in.fixed().U16();
  reply.matched_chunks = in.fixed().U32();
  reply.matched_bytes = in.fixed().U64();
  reply.reservation = in.fixed().U64();
  const uint32_t count = in.fixed().U32();
  if (!in.ok() || stride < kDetailBytes ||
      uint64_t{count} * uint64_t{stride} > in.rest().remaining()) {
    return Corrupt("MATCH reply");
  }
  if (count > kMaxItems) return TooMany("details", count, kMaxItems);
  reply.details.resize(count);
  for (MatchReply::Detail& d : reply.details) {
    ByteReader one(in.rest().Take(stride));
    d.stored_bytes = one.U64();
    d.group = one.U32();
    d.index = one.U32();
    d.tier = static_cast<Tier>(one.U8());
  }
  if (!in.ok()) return Corrupt("MATCH reply");
  return reply;
}

Result<FetchReply> DecodeFetchReply(ByteSpan bytes) {
  StructReader in(bytes);
  FetchReply reply;
  const uint16_t stride = in.fixed().U16();
  const uint32_t count = in.fixed().U32();
  if (!in.ok() || stride < kFetchReplyItemBytes ||
      uint64_t{count} * uint64_t{stride} > in.rest().remaining()) {
    return Corrupt("FETCH reply");
  }
  if (count > kMaxItems) return TooMany("items", count, kMaxItems);
  reply.items.resize(count);
  std::vector<uint32_t> manifest_bytes(count);
  for (uint32_t i = 0; i < count; ++i) {
    ByteReader one(in.rest().Take(stride));
    reply.items[i].status = CodeFromWire(one.U16());
    one.U16();
    manifest_bytes[i] = one.U32();
    reply.items[i].payload_bytes = one.U64();
  }
  for (uint32_t i = 0; i < count; ++i) {
    reply.items[i].manifest = in.rest().Take(manifest_bytes[i]);
  }
  if (!in.ok()) return Corrupt("FETCH reply");
  return reply;
}

Result<StatReply> DecodeStatReply(ByteSpan bytes) {
  StructReader in(bytes);
  StatReply reply;
  reply.tier = static_cast<Tier>(in.fixed().U8());
  in.fixed().U8();
  reply.stored_bytes = in.fixed().U64();
  reply.token_count = in.fixed().U32();
  reply.pins = in.fixed().U32();
  reply.children = in.fixed().U32();
  reply.idle_ms = in.fixed().U32();
  const uint32_t manifest = in.fixed().U32();
  reply.manifest = in.rest().Take(manifest);
  if (!in.ok()) return Corrupt("STAT reply");
  return reply;
}

}  // namespace penstock
