// The tcp wire: bulk bytes on plain stream sockets (TCP or Unix), several a session.

#ifndef PENSTOCK_COMMON_TRANSPORT_TCP_WIRE_H_
#define PENSTOCK_COMMON_TRANSPORT_TCP_WIRE_H_

#include <deque>
#include <memory>
#include <vector>

#include "common/transport/data_stream.h"
#include "common/transport/wire.h"

namespace penstock {

class TcpWire final : public Wire, private FrameSource {
 public:
  // `max_streams`: how many sockets may join.
  TcpWire(WireOwner& owner, uint32_t max_streams) : owner_(owner), max_streams_(max_streams) {}

  Status CanAttach() const override;
  Status AttachStream(UniqueFd fd, std::shared_ptr<void> keep) override;
  bool Ready() const override { return !streams_.empty(); }
  void Send(uint64_t request_id, const DataHeader& header, std::span<const iovec> payload,
            Session::SendDone done) override;
  void Abandon(uint64_t request_id, std::function<void()> done) override;
  void Flush() override;
  size_t queued_bytes() const override { return queued_bytes_; }
  size_t queued_items() const override { return small_.size() + large_.size(); }
  Status CheckProgress(MonotonicTime now, Duration patience) const override;
  void Shutdown(const Status& why, std::function<void()> stopped) override;

 private:
  using ItemQueue = std::deque<std::shared_ptr<OutItem>>;

  bool NextFrame(OutFrame& frame) override;
  void FrameSent(const OutFrame& frame) override;
  void BadMemory(const std::shared_ptr<OutItem>& item) override;

  ItemQueue* NextQueue();
  // Completes `item` with `why` and frees its memory now. The queues keep it until DropFailed().
  void FailItem(const std::shared_ptr<OutItem>& item, const Status& why);
  void DropFailed();
  // Tells the peer that the item will not come.
  void ReportFailure(const OutItem& item, Code code);
  std::vector<std::shared_ptr<OutItem>> LiveItems() const;

  WireOwner& owner_;
  const uint32_t max_streams_;
  std::vector<std::unique_ptr<DataStream>> streams_;
  // What no stream has begun. Small items are let by, so that they do not wait for many big ones.
  ItemQueue small_;
  ItemQueue large_;
  int small_in_a_row_ = 0;
  size_t queued_bytes_ = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_TCP_WIRE_H_
