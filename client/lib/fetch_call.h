// FetchCall: bytes of chunks into the caller's memory. An item is delivered when all its bytes have
// landed, each once, and the checksums of its segments agree; no earlier.

#ifndef PENSTOCK_CLIENT_LIB_FETCH_CALL_H_
#define PENSTOCK_CLIENT_LIB_FETCH_CALL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/lib/call.h"
#include "client/lib/piece_map.h"
#include "client/lib/range_set.h"
#include "common/format/selection.h"

namespace penstock {

// What the items of a fetch have in common.
struct FetchPlan {
  uint64_t reservation = 0;
  uint64_t tag = 0;
  bool accept_inexact = false;
  bool verify = true;
  Selection selection;
  std::vector<std::byte> encoded_selection;
  std::function<void(const Fingerprint& ns, const ChunkKey& key)> on_checksum_failure;
};

class FetchCall final : public Call {
 public:
  struct Target {
    ChunkKey key;
    Fingerprint ns;
    PieceMap room;
    size_t result = 0;  // Position in the operation's results.
  };

  // REQUIRES: at most kMaxNamespaces different namespaces and kMaxItems targets.
  FetchCall(std::shared_ptr<OperationState> operation, std::shared_ptr<const FetchPlan> plan,
            std::vector<Target> targets);

  void Send(Session& session, std::function<void()> changed) override;
  bool Locate(const DataHeader& header, Pieces& pieces) override;
  void OnData(const DataHeader& header, const Status& status) override;
  void OnDataFailed(const DataHeader& header) override;
  Status OnReply(ByteSpan rest) override;
  bool Decided() const override { return undecided_ == 0; }
  bool TouchesMemory() const override { return landing_ > 0; }
  void Fail(const Status& why) override;

 private:
  struct Item {
    explicit Item(Target t) : target(std::move(t)) {}

    Target target;
    bool decided = false;
    // Known once the reply has come and says kOk.
    std::optional<Manifest> manifest;
    uint64_t payload_bytes = 0;
    RangeSet claimed;  // Landed, or landing.
    uint64_t landed_bytes = 0;
  };

  void Decide(Item& item, const Status& status);
  void ReadReplyItem(Item& item, const FetchReply::Item& reply);
  // Judges the item once everything has come.
  void DeliverIfComplete(Item& item);
  Status Judge(Item& item) const;

  const std::shared_ptr<const FetchPlan> plan_;
  std::vector<Item> items_;
  size_t undecided_;
  size_t landing_ = 0;  // Located, and neither landed nor failed yet.
};

}  // namespace penstock

#endif  // PENSTOCK_CLIENT_LIB_FETCH_CALL_H_
