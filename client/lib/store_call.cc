#include "client/lib/store_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock {

StoreCall::StoreCall(std::shared_ptr<OperationState> operation, StoreQueue& queue, bool replace,
                     std::vector<Source> sources)
    : Call(std::move(operation), MessageType::kStore), queue_(queue), replace_(replace) {
  items_.reserve(sources.size());
  for (Source& source : sources) items_.push_back({.source = std::move(source)});
}

void StoreCall::Send(Session& session, std::function<void()> changed) {
  changed_ = std::move(changed);
  NamespaceList namespaces;
  StoreRequest request;
  request.deadline_ms = operation()->deadline().LeftMillis();
  request.replace = replace_;
  request.items.reserve(items_.size());
  uint64_t total = 0;
  for (const Item& item : items_) {
    const Source& source = item.source;
    total += source.bytes.total();
    request.items.push_back({.key = source.key,
                             .payload_bytes = source.bytes.total(),
                             .ns = namespaces.Add(source.ns),
                             .parent = source.parent,
                             .manifest = source.manifest});
  }
  request.namespaces = namespaces.list();
  request.eager = total <= session.info().eager_bytes;
  session.SendMessage(type(), id, request.Encode());
  if (!request.eager) return;
  for (Item& item : items_) item.granted = true;
  queue_.Add(std::static_pointer_cast<StoreCall>(shared_from_this()));
}

void StoreCall::OnGrant(ByteSpan body) {
  const Result<ItemStatuses> grant = ItemStatuses::Decode(body);
  if (!grant.ok() || grant->statuses.size() != items_.size()) {
    return Fail(Status(Code::kCorruptMessage, "a grant that does not fit the store"));
  }
  for (size_t i = 0; i < items_.size(); ++i) items_[i].granted = grant->statuses[i] == Code::kOk;
  queue_.Add(std::static_pointer_cast<StoreCall>(shared_from_this()));
}

bool StoreCall::SendNext(Session& session, std::function<void()> sent) {
  if (phase != Phase::kSent || decided_) return false;
  for (; next_item_ < items_.size(); ++next_item_) {
    const Item& item = items_[next_item_];
    if (item.granted && item.source.bytes.total() > 0) break;
  }
  if (next_item_ == items_.size()) return false;
  const size_t i = next_item_++;
  const PieceMap& bytes = items_[i].source.bytes;
  const DataHeader header{.item = static_cast<uint32_t>(i), .length = bytes.total()};
  ++sending_;
  session.SendData(id, header, bytes.pieces(),
                   [self = shared_from_this(), this, i, sent = std::move(sent)](const Status& s) {
                     --sending_;
                     // The session tells the daemon of bytes that it could not read.
                     items_[i].local = s;
                     sent();
                     if (changed_) changed_();
                   });
  return true;
}

Status StoreCall::OnReply(ByteSpan rest) {
  PENSTOCK_ASSIGN_OR_RETURN(const ItemStatuses reply, ItemStatuses::Decode(rest));
  if (reply.statuses.size() != items_.size()) {
    return Status(Code::kCorruptMessage, fmt::format("an answer about {} chunks to a store of {}",
                                                     reply.statuses.size(), items_.size()));
  }
  decided_ = true;
  for (size_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    const Code code = reply.statuses[i];
    ItemResult& result = ResultOf(item);
    if (code == Code::kOk) {
      result.bytes = item.source.bytes.total();
      result.status = Status::Ok();
    } else if (code == Code::kAlreadyExists) {
      result.status = Status(code);
    } else {
      // What was found on this side says more than what it looked like on the other.
      const Status status = item.local.ok() ? Status(code) : item.local;
      result.status = status.Annotate(
          fmt::format("item {}, chunk {}", item.source.result, item.source.key.ToShortHex()));
    }
  }
  return Status::Ok();
}

void StoreCall::Fail(const Status& why) {
  if (decided_) return;
  decided_ = true;
  for (const Item& item : items_) ResultOf(item).status = why;
  operation()->AddStatus(why);
}

void StoreQueue::Detach() {
  session_ = nullptr;
  waiting_.clear();
}

void StoreQueue::Add(std::shared_ptr<StoreCall> call) {
  if (session_ == nullptr) return;
  waiting_.push_back(std::move(call));
  Pump();
}

void StoreQueue::Pump() {
  while (session_ != nullptr && !waiting_.empty() && on_the_way_ < kMaxItems) {
    const auto sent = [this] {
      --on_the_way_;
      Pump();
    };
    if (waiting_.front()->SendNext(*session_, sent)) {
      ++on_the_way_;
    } else {
      waiting_.pop_front();
    }
  }
}

}  // namespace penstock
