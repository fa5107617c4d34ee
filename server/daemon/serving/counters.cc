#include "server/daemon/serving/counters.h"

namespace penstock {

uint64_t CodeCounters::Sum() const {
  uint64_t sum = 0;
  for (const Counter& counter : counters_) sum += counter.value();
  return sum;
}

RequestKind KindOf(MessageType type) {
  switch (type) {
    case MessageType::kOpenNamespace:
      return RequestKind::kOpenNamespace;
    case MessageType::kMatch:
      return RequestKind::kMatch;
    case MessageType::kFetch:
      return RequestKind::kFetch;
    case MessageType::kStore:
      return RequestKind::kStore;
    case MessageType::kTouch:
      return RequestKind::kTouch;
    case MessageType::kPin:
      return RequestKind::kPin;
    case MessageType::kDrop:
      return RequestKind::kDrop;
    case MessageType::kRelease:
      return RequestKind::kRelease;
    case MessageType::kStat:
      return RequestKind::kStat;
    case MessageType::kHint:
    case MessageType::kPull:
    case MessageType::kPush:
      return RequestKind::kReserved;
    default:
      return RequestKind::kUnknown;
  }
}

const char* RequestKindName(RequestKind kind) {
  static constexpr std::array<const char*, kRequestKinds> kNames = {
      "open_namespace", "match",   "fetch", "store",    "touch",  "pin",
      "drop",           "release", "stat",  "reserved", "unknown"};
  return kNames[static_cast<size_t>(kind)];
}

void ServingCounters::CountReply(RequestKind kind, Code code, MonotonicTime since) {
  Requests& counted = requests[static_cast<size_t>(kind)];
  counted.replies[code].Add();
  counted.latency.Observe(MonotonicNow() - since);
}

}  // namespace penstock
