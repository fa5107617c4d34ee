// Bodies of requests and replies. The first byte says which decoder gets the rest.

#include <span>
#include <vector>

#include "common/protocol/messages.h"
#include "tests/fuzz/harness.h"

namespace penstock {
namespace {

// Whatever is accepted encodes to a form that is accepted again and stays as it is: fields that
// this build does not know are dropped once, and nothing else changes.
template <typename Message>
void CheckRequest(ByteSpan input) {
  const auto first = Message::Decode(input);
  if (!first.ok()) return;
  const std::vector<std::byte> encoded = first.value().Encode();
  const auto second = Message::Decode(encoded);
  FUZZ_CHECK(second.ok());
  FUZZ_CHECK(SameBytes(second.value().Encode(), encoded));
}

template <typename Reply>
void CheckRest(const ReplyHead& head, const Result<Reply>& reply,
               Result<Reply> (*decode)(ByteSpan)) {
  if (!reply.ok()) return;
  const std::vector<std::byte> encoded = EncodeReply(head, reply.value());
  const auto again = DecodeReply(encoded);
  FUZZ_CHECK(again.ok());
  if (head.status != Code::kOk) return;
  const auto second = decode(again.value().rest);
  FUZZ_CHECK(second.ok());
  FUZZ_CHECK(SameBytes(EncodeReply(again.value().head, second.value()), encoded));
}

void CheckReply(ByteSpan input) {
  const auto decoded = DecodeReply(input);
  if (!decoded.ok()) return;
  const auto& [head, rest] = decoded.value();
  FUZZ_CHECK(head.message.size() <= kMaxMessageText);
  CheckRest<MatchReply>(head, DecodeMatchReply(rest), DecodeMatchReply);
  CheckRest<FetchReply>(head, DecodeFetchReply(rest), DecodeFetchReply);
  CheckRest<StatReply>(head, DecodeStatReply(rest), DecodeStatReply);
  CheckRest<ItemStatuses>(head, ItemStatuses::Decode(rest), ItemStatuses::Decode);
}

void CheckLimits(ByteSpan input) {
  if (const auto match = MatchRequest::Decode(input); match.ok()) {
    FUZZ_CHECK(match.value().groups.size() <= kMaxGroups);
  }
  if (const auto fetch = FetchRequest::Decode(input); fetch.ok()) {
    FUZZ_CHECK(fetch.value().items.size() <= kMaxItems);
    for (const auto& item : fetch.value().items) {
      FUZZ_CHECK(item.ns < fetch.value().namespaces.size());
    }
  }
  if (const auto store = StoreRequest::Decode(input); store.ok()) {
    FUZZ_CHECK(store.value().items.size() <= kMaxItems);
    for (const auto& item : store.value().items) {
      FUZZ_CHECK(item.ns < store.value().namespaces.size());
    }
  }
}

void Check(uint8_t choice, ByteSpan input) {
  switch (choice % 9) {
    case 0:
      CheckRequest<OpenNamespaceRequest>(input);
      break;
    case 1:
      CheckRequest<MatchRequest>(input);
      break;
    case 2:
      CheckRequest<FetchRequest>(input);
      break;
    case 3:
      CheckRequest<StoreRequest>(input);
      break;
    case 4:
      CheckRequest<ItemStatuses>(input);
      break;
    case 5:
      CheckRequest<KeysRequest>(input);
      break;
    case 6:
      CheckRequest<ReleaseRequest>(input);
      break;
    case 7:
      CheckRequest<StatRequest>(input);
      break;
    default:
      CheckReply(input);
  }
  CheckLimits(input);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) penstock::Check(data[0], penstock::FuzzInput(data + 1, size - 1));
  return 0;
}
