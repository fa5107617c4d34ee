#include "client/lib/call.h"

#include <fmt/format.h>

#include <algorithm>

namespace penstock {

SimpleCall::SimpleCall(std::shared_ptr<OperationState> operation, MessageType type, Encode encode,
                       Read read, size_t first, size_t count, Code fine)
    : Call(std::move(operation), type),
      encode_(std::move(encode)),
      read_(std::move(read)),
      first_(first),
      count_(count),
      fine_(fine) {}

void SimpleCall::Send(Session& session, std::function<void()> /*changed*/) {
  session.SendMessage(type(), id, encode_(*operation()));
}

Status SimpleCall::OnReply(ByteSpan rest) {
  PENSTOCK_RETURN_IF_ERROR(read_(rest, *operation()));
  decided_ = true;
  return Status::Ok();
}

void SimpleCall::Fail(const Status& why) {
  if (decided_) return;
  decided_ = true;
  if (why.code() == fine_) return;
  for (size_t i = first_; i < first_ + count_; ++i) operation()->mutable_items()[i].status = why;
  operation()->AddStatus(why);
}

uint32_t NamespaceList::Add(const Fingerprint& ns) {
  const auto it = std::find(list_.begin(), list_.end(), ns);
  if (it != list_.end()) return static_cast<uint32_t>(it - list_.begin());
  list_.push_back(ns);
  return static_cast<uint32_t>(list_.size() - 1);
}

bool NamespaceList::Fits(const Fingerprint& ns) const {
  return list_.size() < kMaxNamespaces || std::find(list_.begin(), list_.end(), ns) != list_.end();
}

Status ReadItemStatuses(ByteSpan rest, std::span<ItemResult> results) {
  PENSTOCK_ASSIGN_OR_RETURN(const ItemStatuses reply, ItemStatuses::Decode(rest));
  if (reply.statuses.size() != results.size()) {
    return Status(Code::kCorruptMessage,
                  fmt::format("{} statuses for {} items", reply.statuses.size(), results.size()));
  }
  for (size_t i = 0; i < results.size(); ++i) results[i].status = Status(reply.statuses[i]);
  return Status::Ok();
}

}  // namespace penstock
