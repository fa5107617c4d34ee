// The tcp wire: bulk bytes on plain stream sockets (TCP or Unix), several a session. With
// References it is the local wire: one Unix socket, on which long payloads are only referred to.

#ifndef PENSTOCK_COMMON_TRANSPORT_TCP_WIRE_H_
#define PENSTOCK_COMMON_TRANSPORT_TCP_WIRE_H_

#include <memory>
#include <optional>
#include <vector>

#include "common/transport/data_stream.h"
#include "common/transport/send_queue.h"
#include "common/transport/wire.h"

namespace penstock {

class TcpWire final : public Wire, private FrameSource {
 public:
  // `max_streams`: how many sockets may join.
  TcpWire(WireOwner& owner, uint32_t max_streams);
  // The local wire.
  TcpWire(WireOwner& owner, References references);

  Status CanAttach() const override;
  Status AttachStream(UniqueFd fd, std::shared_ptr<void> keep) override;
  bool Ready() const override { return !streams_.empty(); }

  void Send(uint64_t request_id, const DataHeader& header, std::span<const iovec> payload,
            Session::SendDone done) override;
  void Abandon(uint64_t request_id, std::function<void()> done) override;
  void Flush() override;
  size_t queued_bytes() const override { return queue_.bytes(); }
  size_t queued_items() const override { return queue_.items(); }
  bool refers() const override { return references_ && references_->may_refer(); }
  Status CheckProgress(MonotonicTime now, Duration patience) const override;
  void Shutdown(const Status& why, std::function<void()> stopped) override;

 private:
  // FrameSource. The streams take what is next as they have room, which balances them.
  bool NextFrame(OutFrame& frame) override;
  void FrameSent(const OutFrame& frame) override { queue_.FrameSent(frame); }
  void FrameTaken(const OutFrame& frame, const Status& status) override;
  void BadMemory(const std::shared_ptr<OutItem>& item) override;

  // An Abandon() of a request whose memory the other side may still be reading.
  struct Wait {
    uint64_t request_id = 0;
    std::function<void()> done;
    MonotonicTime since;
    EventLoop::TimerId timer = 0;
  };

  // Completes `item` with `why` and frees its memory, now or as soon as the other side does not
  // read it any more. The queue keeps it until DropFailed().
  void FailItem(OutItem& item, const Status& why);
  bool Refers(const OutItem& item) const;
  bool Refers(uint64_t request_id) const;
  void AddWait(uint64_t request_id, std::function<void()> done);
  void WatchWait(Wait& wait);
  void CheckWaits();
  // Waiting or in a frame, each once.
  std::vector<std::shared_ptr<OutItem>> LiveItems() const;

  WireOwner& owner_;
  const uint32_t max_streams_;
  SendQueue queue_;
  std::optional<References> references_;
  std::vector<std::unique_ptr<Wait>> waits_;
  MonotonicTime last_taken_ = MonotonicNow();
  std::vector<std::unique_ptr<DataStream>> streams_;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_TCP_WIRE_H_
