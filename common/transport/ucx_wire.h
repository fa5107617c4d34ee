// The ucx wire: bulk bytes as UCX active messages on one endpoint.
//
// A DATA frame's two headers are the active message's header. Small payloads come with it and are
// copied to their place; large ones are announced, and the receiver fetches them straight into the
// pieces that the session names (rendezvous by get: a sender never writes into the memory of
// others). Memory that is not mapped is refused with kBadBuffer before UCX sees it; to know that is
// quick for registered memory, and slow for other memory.

#ifndef PENSTOCK_COMMON_TRANSPORT_UCX_WIRE_H_
#define PENSTOCK_COMMON_TRANSPORT_UCX_WIRE_H_

#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/transport/send_queue.h"
#include "common/transport/ucx_worker.h"
#include "common/transport/wire.h"

namespace penstock {

class UcxWire final : public Wire, private UcxEndpointUser {
 public:
  // `worker` is that of the session's loop.
  UcxWire(WireOwner& owner, UcxWorker& worker);
  // REQUIRES: Shutdown() has finished, or nothing was begun.
  ~UcxWire() override;

  // The daemon's side: waits for the client's ATTACH.
  void Expect(const SessionToken& token);
  // The client's side: connects and attaches. `attached` is called once from the loop, with an
  // error too when the wire fails before. `keep`, who owns this wire, lives until then, or until
  // the loop ends; `attached` must not hold it.
  void Connect(const SocketAddress& address, const SessionToken& token, const Deadline& deadline,
               std::shared_ptr<void> keep, std::function<void(const Status&)> attached);

  Status CanAttach() const override;
  Status AttachStream(UniqueFd fd, std::shared_ptr<void> keep) override;
  bool Ready() const override { return attached_; }

  void Send(uint64_t request_id, const DataHeader& header, std::span<const iovec> payload,
            Session::SendDone done) override;
  void Abandon(uint64_t request_id, std::function<void()> done) override;
  void Flush() override;
  size_t queued_bytes() const override { return queue_.bytes(); }
  size_t queued_items() const override { return queue_.items(); }
  Status CheckProgress(MonotonicTime now, Duration patience) const override;
  void Shutdown(const Status& why, std::function<void()> stopped) override;

 private:
  struct UcxPieces;
  struct Outgoing;
  struct Incoming;
  struct Wait;

  // UcxEndpointUser.
  bool OnUcxData(ByteSpan header, void* data, size_t length, bool rendezvous) override;
  void OnUcxAttached() override;
  void OnUcxError(const Status& why) override;

  bool Deliver(uint64_t request_id, const DataHeader& header, void* data, bool rendezvous);
  bool Fetch(std::unique_ptr<Incoming> incoming, void* descriptor);
  void OnFetched(Incoming* incoming, const Status& status);
  void Start(std::unique_ptr<Outgoing> outgoing);
  void OnSent(Outgoing* outgoing, ucs_status_t status);
  void OperationEnded();
  bool Busy(uint64_t request_id) const;
  void WatchWait(Wait& wait);
  void CheckWaits();
  void CheckStopped();
  void CloseSoon();
  void CloseEndpoint();
  void TellAttached(const Status& status);

  WireOwner& owner_;
  UcxWorker& worker_;
  SendQueue queue_;
  UcxEndpoint* endpoint_ = nullptr;
  bool attached_ = false;
  Status failure_;  // Of the endpoint, before the dialer has been told that it is attached.
  std::optional<SessionToken> expected_;
  std::function<void(const Status&)> on_attached_;
  EventLoop::TimerId connect_timer_ = 0;
  EventLoop::TimerId drain_timer_ = 0;

  // What UCX has in its hands.
  absl::flat_hash_set<Outgoing*> outgoing_;
  absl::flat_hash_set<Incoming*> incoming_;
  uint64_t bytes_in_flight_ = 0;
  std::vector<std::unique_ptr<Wait>> waits_;
  MonotonicTime last_progress_ = MonotonicNow();

  // Set by Shutdown().
  std::function<void()> stopped_;
  Status why_;
  bool endpoint_closed_ = true;
  bool endpoint_given_up_ = false;  // The worker closes it.
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_UCX_WIRE_H_
