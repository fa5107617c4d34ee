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

class StoreQueue;

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

  // REQUIRES: at most kMaxNamespaces different namespaces and kMaxItems sources.
  StoreCall(std::shared_ptr<OperationState> operation, StoreQueue& queue, bool replace,
            std::vector<Source> sources);

  void Send(Session& session, std::function<void()> changed) override;
  void OnGrant(ByteSpan body) override;
  Status OnReply(ByteSpan rest) override;
  bool Decided() const override { return decided_; }
  bool TouchesMemory() const override { return sending_ > 0; }
  void Fail(const Status& why) override;

  // The rest is for the StoreQueue. Hands the next item to the session; false when there is none.
  bool SendNext(Session& session, std::function<void()> sent);

 private:
  struct Item {
    Source source;
    bool granted = false;
    Status local;  // Why the bytes could not be sent.
  };

  ItemResult& ResultOf(const Item& item) {
    return operation()->mutable_items()[item.source.result];
  }

  StoreQueue& queue_;
  const bool replace_;
  std::vector<Item> items_;
  bool decided_ = false;
  size_t next_item_ = 0;
  size_t sending_ = 0;  // Items that the session has.
  std::function<void()> changed_;
};

// Hands the items of stores to the session, first come first served, and only so many at a time:
// each costs the session a little memory until it is sent. Used on the client's loop alone.
class StoreQueue {
 public:
  static constexpr size_t kMaxItems = 8192;

  // A new session. REQUIRES: every item of the former one was reported as sent or failed.
  void Attach(Session& session) { session_ = &session; }
  // The session ended.
  void Detach();
  // `call` has items to send.
  void Add(std::shared_ptr<StoreCall> call);

 private:
  void Pump();

  Session* session_ = nullptr;
  size_t on_the_way_ = 0;
  std::deque<std::shared_ptr<StoreCall>> waiting_;
};

}  // namespace penstock

#endif  // PENSTOCK_CLIENT_LIB_STORE_CALL_H_
