#include "client/lib/fetch_call.h"

#include <fmt/format.h>

#include <utility>

#include "common/format/verify.h"

namespace penstock {

FetchCall::FetchCall(std::shared_ptr<OperationState> operation,
                     std::shared_ptr<const FetchPlan> plan, std::vector<Target> targets)
    : Call(std::move(operation), MessageType::kFetch),
      plan_(std::move(plan)),
      undecided_(targets.size()) {
  items_.reserve(targets.size());
  for (Target& target : targets) items_.emplace_back(std::move(target));
}

void FetchCall::Send(Session& session, std::function<void()> /*changed*/) {
  NamespaceList namespaces;
  FetchRequest request;
  request.deadline_ms = operation()->deadline().LeftMillis();
  request.accept_inexact = plan_->accept_inexact;
  request.reservation = plan_->reservation;
  request.tag = plan_->tag;
  request.selection = plan_->encoded_selection;
  request.items.reserve(items_.size());
  for (const Item& item : items_) {
    request.items.push_back({.key = item.target.key,
                             .capacity = item.target.room.total(),
                             .ns = namespaces.Add(item.target.ns)});
  }
  request.namespaces = namespaces.list();
  session.SendMessage(type(), id, request.Encode());
}

bool FetchCall::Locate(const DataHeader& header, Pieces& pieces) {
  if (header.item >= items_.size()) return false;
  Item& item = items_[header.item];
  if (item.decided) return false;
  const uint64_t room = item.manifest ? item.payload_bytes : item.target.room.total();
  // The frame's end does not overflow: ParseDataHeader() saw to that.
  if (header.offset + header.length > room ||
      !item.claimed.Claim(header.offset, header.offset + header.length)) {
    Decide(item, Status(Code::kCorruptMessage, fmt::format("{} bytes at {} do not belong there",
                                                           header.length, header.offset)));
    return false;
  }
  item.target.room.Slice(header.offset, header.length, pieces);
  ++landing_;
  return true;
}

void FetchCall::OnData(const DataHeader& header, const Status& status) {
  --landing_;
  Item& item = items_[header.item];
  if (item.decided) return;
  if (!status.ok()) return Decide(item, status);
  item.landed_bytes += header.length;
  DeliverIfComplete(item);
}

void FetchCall::OnDataFailed(const DataHeader& header) {
  if (header.item >= items_.size()) return;
  Item& item = items_[header.item];
  const Code code = CodeFromWire(header.status);
  // "Failed with kOk" is a bug of the other side, and no delivery.
  if (!item.decided) Decide(item, Status(code == Code::kOk ? Code::kInternal : code));
}

Status FetchCall::OnReply(ByteSpan rest) {
  PENSTOCK_ASSIGN_OR_RETURN(const FetchReply reply, DecodeFetchReply(rest));
  if (reply.items.size() != items_.size()) {
    return Status(Code::kCorruptMessage, fmt::format("an answer about {} chunks to a fetch of {}",
                                                     reply.items.size(), items_.size()));
  }
  for (size_t i = 0; i < items_.size(); ++i) {
    if (!items_[i].decided) ReadReplyItem(items_[i], reply.items[i]);
  }
  return Status::Ok();
}

void FetchCall::ReadReplyItem(Item& item, const FetchReply::Item& reply) {
  ItemResult& result = operation()->mutable_items()[item.target.result];
  if (reply.status != Code::kOk) {
    if (reply.status == Code::kBufferTooSmall) result.bytes = reply.payload_bytes;
    return Decide(item, Status(reply.status));
  }
  Result<Manifest> manifest = Manifest::Decode(reply.manifest);
  if (!manifest.ok()) return Decide(item, manifest.status());
  if (reply.payload_bytes > item.target.room.total()) {
    result.bytes = reply.payload_bytes;
    return Decide(item, Status(Code::kBufferTooSmall,
                               fmt::format("{} bytes, room for {}", reply.payload_bytes,
                                           item.target.room.total())));
  }
  if (item.claimed.end() > reply.payload_bytes) {
    return Decide(item, Status(Code::kCorruptMessage, "more bytes came than were announced"));
  }
  item.manifest = std::move(manifest).value();
  item.payload_bytes = reply.payload_bytes;
  result.token_count = item.manifest->token_count;
  DeliverIfComplete(item);
}

void FetchCall::DeliverIfComplete(Item& item) {
  if (!item.manifest || item.landed_bytes != item.payload_bytes) return;
  const Status status = Judge(item);
  if (status.code() == Code::kChecksumMismatch && plan_->on_checksum_failure) {
    plan_->on_checksum_failure(item.target.ns, item.target.key);
  }
  if (status.ok()) operation()->mutable_items()[item.target.result].bytes = item.payload_bytes;
  Decide(item, status);
}

Status FetchCall::Judge(Item& item) const {
  const Manifest& manifest = *item.manifest;
  if (manifest.tag != 0 && manifest.tag != plan_->tag) {
    return Status(Code::kFormatMismatch, "stored with another tag");
  }
  if (!plan_->accept_inexact &&
      (manifest.flags & (kManifestLossy | kManifestQueryDependent)) != 0) {
    return Status(Code::kFormatMismatch, "not exact, and exact bytes were asked for");
  }
  if (!plan_->verify) return Status::Ok();
  Pieces pieces;
  item.target.room.Slice(0, item.payload_bytes, pieces);
  return VerifySegments(item.target.key, manifest, plan_->selection, pieces);
}

void FetchCall::Decide(Item& item, const Status& status) {
  item.decided = true;
  --undecided_;
  Status& result = operation()->mutable_items()[item.target.result].status;
  // A miss is too common for words; everything else says which chunk it was.
  result = status.ok() || (status.code() == Code::kMiss && status.message().empty())
               ? status
               : status.Annotate(fmt::format("item {}, chunk {}", item.target.result,
                                             item.target.key.ToShortHex()));
}

void FetchCall::Fail(const Status& why) {
  if (Decided()) return;
  for (Item& item : items_) {
    if (item.decided) continue;
    item.decided = true;
    operation()->mutable_items()[item.target.result].status = why;
  }
  undecided_ = 0;
  operation()->AddStatus(why);
}

}  // namespace penstock
