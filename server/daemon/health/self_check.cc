#include "server/daemon/health/self_check.h"

#include <memory>
#include <utility>
#include <vector>

#include "common/format/checksum.h"
#include "common/format/manifest.h"
#include "common/format/verify.h"
#include "common/protocol/messages.h"
#include "common/transport/session.h"
#include "fmt/format.h"

namespace penstock {
namespace {

// Enough to meet each of up to 64 parts of an index with near certainty.
constexpr uint32_t kProbedKeys = 1024;

enum Step : uint64_t { kDial = 0, kOpen = 1, kStore = 2, kFetch = 3, kDrop = 4, kDone = 5 };
constexpr const char* kStepNames[] = {
    "connecting", "opening the namespace", "storing", "fetching", "dropping", "closing"};

class Check final : public SessionEvents, public std::enable_shared_from_this<Check> {
 public:
  Check(EventLoop& loop, const SelfCheckPlan& plan,
        std::function<void(const SelfCheckResult&)> done)
      : loop_(loop),
        plan_(plan),
        done_(std::move(done)),
        bytes_(plan.chunk_bytes),
        fetched_(plan.chunk_bytes) {
    uint64_t word = plan.number * 0x9E3779B97F4A7C15 + 1;
    for (std::byte& byte : bytes_) {
      word = word * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<std::byte>(word >> 56);
    }
    key_ = NamedKey(ns_, fmt::format("self-check/{}", plan.number));
    manifest_ = Manifest::Plain(bytes_.size(), ChunkChecksum(key_, bytes_));
  }

  void Start() {
    self_ = shared_from_this();  // Until done_ has been called.
    deadline_ = Deadline::After(plan_.patience);
    timer_ = loop_.After(plan_.patience, [this] {
      Fail(Status(
          Code::kDeadlineExceeded,
          fmt::format("no answer within {} ms",
                      std::chrono::ceil<std::chrono::milliseconds>(plan_.patience).count())));
    });
    const DialOptions options{.address = plan_.address,
                              .wire = "tcp",
                              .streams = 1,
                              .tenant = SelfCheckNamespace().tenant,
                              .client_name = plan_.client_name};
    Dial(loop_, options, deadline_, *this, [this](Result<Session*> session) {
      if (!session.ok()) {
        Fail(session.status());
        return Finish();
      }
      session_ = *session;
      if (failed()) return session_->Close(Status(Code::kCancelled));
      Send(MessageType::kOpenNamespace, kOpen,
           OpenNamespaceRequest{SelfCheckNamespace().Encode()}.Encode());
    });
  }

  void OnMessage(MessageType type, uint64_t request_id, ByteSpan body) override {
    if (failed() || request_id != step_) return;
    if (type == MessageType::kGrant) return SendBytes(body);
    if (type != MessageType::kReply) return;
    const auto reply = DecodeReply(body);
    if (!reply.ok()) return Fail(reply.status());
    if (reply->head.status != Code::kOk) return Fail(reply->head.ToStatus());
    OnReply(reply->rest);
  }

  bool Locate(uint64_t request_id, const DataHeader& header, Pieces& pieces) override {
    if (request_id != kFetch || failed() || header.offset > fetched_.size() ||
        header.length > fetched_.size() - header.offset) {
      return false;
    }
    pieces.push_back({fetched_.data() + header.offset, header.length});
    return true;
  }
  void OnData(uint64_t, const DataHeader& header, const Status& status) override {
    if (!status.ok()) return Fail(status);
    arrived_ += header.length;
    MaybeCompare();
  }
  void OnDataFailed(uint64_t, const DataHeader& header) override {
    Fail(Status(CodeFromWire(header.status), "the daemon could not send"));
  }
  void OnClosed(const Status& why) override {
    session_ = nullptr;
    if (step_ != kDone) Fail(why);
    Finish();
  }

 private:
  bool failed() const { return !result_.ok(); }

  void Send(MessageType type, Step step, const std::vector<std::byte>& body) {
    step_ = step;
    session_->SendMessage(type, step, body);
  }

  void OnReply(ByteSpan rest) {
    switch (step_) {
      case kOpen:
        return SendStore();
      case kStore:
        return ExpectItemOk(rest) ? SendFetch() : void();
      case kFetch:
        return OnFetched(rest);
      case kDrop:
        if (!ExpectItemOk(rest)) return;
        step_ = kDone;
        return session_->Close(Status::Ok());
      default:
        return;
    }
  }

  bool ExpectItemOk(ByteSpan rest) {
    const auto statuses = ItemStatuses::Decode(rest);
    const bool one = statuses.ok() && statuses->statuses.size() == 1;
    if (!one) {
      Fail(Status(Code::kCorruptMessage, "one item status was expected"));
    } else if (statuses->statuses[0] != Code::kOk) {
      Fail(Status(statuses->statuses[0]));
    }
    return !failed();
  }

  void SendStore() {
    const std::vector<std::byte> manifest = manifest_.Encode();
    StoreRequest request{.deadline_ms = deadline_.LeftMillis()};
    request.namespaces = {ns_};
    request.items.push_back({.key = key_,
                             .payload_bytes = bytes_.size(),
                             .ns = 0,
                             .parent = std::nullopt,
                             .manifest = manifest});
    Send(MessageType::kStore, kStore, request.Encode());
  }

  void SendBytes(ByteSpan grant) {
    const auto statuses = ItemStatuses::Decode(grant);
    // A refusal is told again in the reply.
    if (!statuses.ok() || statuses->statuses != std::vector<Code>{Code::kOk}) return;
    const iovec piece{bytes_.data(), bytes_.size()};
    session_->SendData(kStore, {.item = 0, .length = bytes_.size()}, {&piece, 1},
                       [self = self_](const Status&) {});
  }

  void SendFetch() {
    FetchRequest request{.deadline_ms = deadline_.LeftMillis()};
    request.namespaces = {ns_};
    request.items.push_back({.key = key_, .capacity = fetched_.size()});
    for (uint32_t i = 1; i < kProbedKeys; ++i) {
      ChunkKey probe = key_;  // Any other key: nothing is stored there.
      for (size_t b = 0; b < probe.bytes.size(); ++b) {
        probe.bytes[b] = static_cast<uint8_t>((probe.bytes[b] + (i * (2 * b + 1) >> (b % 8))) ^ i);
      }
      request.items.push_back({.key = probe, .capacity = 0});
    }
    Send(MessageType::kFetch, kFetch, request.Encode());
  }

  void OnFetched(ByteSpan rest) {
    const auto reply = DecodeFetchReply(rest);
    if (!reply.ok()) return Fail(reply.status());
    if (reply->items.size() != kProbedKeys || reply->items[0].status != Code::kOk ||
        reply->items[0].payload_bytes != bytes_.size()) {
      return Fail(Status(reply->items.empty() ? Code::kInternal : reply->items[0].status,
                         "the chunk that was just stored is not there"));
    }
    replied_ = true;
    MaybeCompare();
  }

  void MaybeCompare() {
    if (failed() || step_ != kFetch || !replied_ || arrived_ < fetched_.size()) return;
    const iovec piece{fetched_.data(), fetched_.size()};
    const Status right = VerifySegments(key_, manifest_, Selection::All(), {&piece, 1});
    if (!right.ok()) return Fail(right);
    if (fetched_ != bytes_) {
      return Fail(Status(Code::kChecksumMismatch, "other bytes came back than were stored"));
    }
    Send(MessageType::kDrop, kDrop, KeysRequest{.ns = ns_, .keys = {key_}}.Encode());
  }

  // Only the first failure counts.
  void Fail(const Status& why) {
    if (failed() || step_ == kDone) return;
    const Status cause = why.ok() ? Status(Code::kDisconnected, "the session ended") : why;
    result_ = cause.Annotate(fmt::format("self-check, {}", kStepNames[step_]));
    if (session_ != nullptr) session_->Close(Status(Code::kCancelled));
  }

  // The session is over, or never was.
  void Finish() {
    loop_.CancelTimer(timer_);
    if (self_ == nullptr) return;
    loop_.Post([self = std::move(self_)] {});  // Its session may still be on the stack.
    done_({result_, MonotonicNow() - began_});
  }

  EventLoop& loop_;
  const SelfCheckPlan plan_;
  const std::function<void(const SelfCheckResult&)> done_;
  const Fingerprint ns_ = SelfCheckNamespace().ComputeFingerprint();
  const MonotonicTime began_ = MonotonicNow();
  Deadline deadline_ = Deadline::After(Duration::zero());
  EventLoop::TimerId timer_ = 0;
  ChunkKey key_;
  Manifest manifest_;
  std::vector<std::byte> bytes_, fetched_;
  std::shared_ptr<Check> self_;
  Session* session_ = nullptr;
  uint64_t step_ = kDial;
  uint64_t arrived_ = 0;
  bool replied_ = false;
  Status result_;
};

}  // namespace

NamespaceDescriptor SelfCheckNamespace() {
  NamespaceDescriptor descriptor;
  descriptor.tenant = "penstock.internal";
  descriptor.model = "self-check";
  descriptor.block_tokens = 1;
  descriptor.chunk_tokens = 1;
  return descriptor;
}

void RunSelfCheck(EventLoop& loop, const SelfCheckPlan& plan,
                  std::function<void(const SelfCheckResult&)> done) {
  auto check = std::make_shared<Check>(loop, plan, std::move(done));
  loop.Post([check] { check->Start(); });
}

}  // namespace penstock
