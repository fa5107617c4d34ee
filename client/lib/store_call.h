// StoreCall: bytes of chunks out of the caller's memory. The checksums were made before, over the
// memory as it was when the caller stored it; the daemon checks what it gets against them, so
// memory that changed in between is refused and never stored.

#ifndef PENSTOCK_CLIENT_LIB_STORE_CALL_H_
#define PENSTOCK_CLIENT_LIB_STORE_CALL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "client/lib/call.h"
#include "client/lib/piece_map.h"

namespace penstock {

class SendQueue;

class StoreCall final : public Call {
 public:
  struct Source {
    ChunkKey key;
    Fingerprint ns;
    PieceMap bytes;
    std::vector<std::byte> manifest;  // Encoded.
    std::optional<ChunkKey> parent;
    size_t result = 0;  // Position in the operation's results.
  };
  struct Frame {
    DataHeader header;
    Pieces pieces;
  };

  // REQUIRES: at most kMaxNamespaces different namespaces and kMaxItems sources.
  StoreCall(std::shared_ptr<OperationState> operation, SendQueue& queue, bool replace,
            std::vector<Source> sources);

  void Send(Session& session, std::function<void()> changed) override;
  void OnGrant(ByteSpan body) override;
  Status OnReply(ByteSpan rest) override;
  bool Decided() const override { return decided_; }
  bool TouchesMemory() const override { return sending_ > 0; }
  void Fail(const Status& why) override;

  // The rest is for the SendQueue.

  // The daemon still waits for its bytes.
  bool Sendable() const { return phase == Phase::kSent && !decided_; }
  // The next bytes to send, at most `max_bytes`; none when there is nothing to send.
  std::optional<Frame> NextFrame(uint64_t max_bytes);
  void OnSent(const DataHeader& header, const Status& status);

 private:
  struct Item {
    Source source;
    bool granted = false;
    uint64_t sent_bytes = 0;  // Handed to the session.
    Status local;             // Why the bytes could not be sent.
  };

  ItemResult& ResultOf(const Item& item) {
    return operation()->mutable_items()[item.source.result];
  }

  SendQueue& queue_;
  const bool replace_;
  std::vector<Item> items_;
  bool decided_ = false;
  size_t next_item_ = 0;
  size_t sending_ = 0;  // Frames that the session has.
  std::function<void()> changed_;
};

// Hands the bytes of stores to the session a window at a time, first come first served, so that a
// store that ends early has little on its way. Used on the client's loop alone.
class SendQueue {
 public:
  static constexpr uint64_t kWindowBytes = 16u << 20;
  static constexpr uint64_t kFrameBytes = 1u << 20;

  // A new session. REQUIRES: every frame of the former one was reported as sent or failed.
  void Attach(Session& session) { session_ = &session; }
  // The session ended.
  void Detach();
  // `call` has frames to send. It stays in the queue no longer than it is being sent.
  void Add(std::shared_ptr<StoreCall> call);

 private:
  void Pump();
  void Send(const std::shared_ptr<StoreCall>& call, StoreCall::Frame frame);

  Session* session_ = nullptr;
  uint64_t on_the_way_ = 0;
  bool pumping_ = false;
  std::deque<std::shared_ptr<StoreCall>> waiting_;
};

}  // namespace penstock

#endif  // PENSTOCK_CLIENT_LIB_STORE_CALL_H_
