// FetchJob: one FETCH request, from its lookup to the last byte that the wire takes.
//
// The reply goes out first: what is there, and how long it is. From then on every promised chunk is
// held by a ChunkRef until the wire has read its last byte, so no eviction, drop or replacement can
// change what the client gets. The bytes follow in DATA frames, items in order, a frame at a time
// when the session says so (SendNext), so that no fetch takes more than its turn.
//
// Held chunks are bounded (FetchBudget): an item beyond is answered with kBusy.
//
// A reservation that the request names is not needed to fetch: the refs protect what is there, and
// what is gone is a miss of its own item. One that is gone is only counted.
//
// Threads: the session's loop only.

#ifndef PENSTOCK_SERVER_DAEMON_SERVING_FETCH_JOB_H_
#define PENSTOCK_SERVER_DAEMON_SERVING_FETCH_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/format/selection.h"
#include "common/protocol/messages.h"
#include "common/transport/session.h"
#include "server/daemon/serving/namespace_view.h"
#include "server/daemon/serving/serving.h"

namespace penstock {

class FetchJob : public std::enable_shared_from_this<FetchJob> {
 public:
  // Where a job belongs. All outlive it.
  struct Context {
    Session& session;
    Serving& serving;
    ServingCounters& counters;
    std::shared_ptr<SessionRecord> record;
  };
  // Called as the last thing a job does: its owner lets go of it.
  using OnFinished = std::function<void(uint64_t request_id)>;
  // Called when `bytes` that SendNext() gave to the wire are not there any more.
  using OnDrained = std::function<void(uint64_t bytes)>;

  FetchJob(Context context, uint64_t request_id, InFlight::Slot slot, OnDrained on_drained,
           OnFinished on_finished);
  // Of a job that is not finished: the session is gone, and nothing reads its chunks any more.
  ~FetchJob();
  FetchJob(const FetchJob&) = delete;
  FetchJob& operator=(const FetchJob&) = delete;

  // Looks everything up, replies, and arms the deadline. Called once, by a holder of a shared_ptr.
  void Start(const FetchRequest& request, const Selection& selection, NamespaceView& namespaces);

  // Gives the next frame to the wire and returns its bytes; 0 when there is none (left).
  uint64_t SendNext();

  // The client does not want it any more: what was not sent is dropped.
  void Cancel() { GiveUp(Code::kCancelled); }

 private:
  struct Item {
    ChunkRef chunk;
    FetchBudget::Hold hold;     // For the chunk.
    SelectedSegments segments;  // Empty: the whole chunk.
    uint64_t bytes = 0;         // To deliver.
    uint64_t sent = 0;          // Given to the wire.
    uint32_t index = 0;         // In the request.
    uint32_t in_transit = 0;    // Frames given and not done.
    Code failure = Code::kOk;
  };

  std::vector<Result<ChunkRef>> Lookup(const FetchRequest& request, NamespaceView& namespaces);
  FetchReply::Item Judge(const FetchRequest::Item& wanted, Result<ChunkRef> found,
                         const Selection& selection, uint32_t index);
  void ArmDeadline(uint32_t deadline_ms);
  void OnSent(size_t position, uint64_t bytes, const Status& status);
  // An item of which nothing is in transit and nothing more will be sent.
  void Settle(Item& item);
  void GiveUp(Code why);
  void OnAbandoned();
  void MaybeFinish();

  const Context context_;
  EventLoop& loop_;  // The session's, which outlives the session.
  const uint64_t request_id_;
  const MonotonicTime since_ = MonotonicNow();
  const OnDrained on_drained_;
  const OnFinished on_finished_;
  InFlight::Slot slot_;
  std::vector<Item> items_;    // Those with bytes to deliver, in the order of the request.
  size_t next_ = 0;            // First item that is not wholly given to the wire.
  size_t open_ = 0;            // Items that are not settled.
  uint64_t queued_bytes_ = 0;  // In transit.
  Code reply_ = Code::kDisconnected;
  bool finished_ = false;
  Code given_up_ = Code::kOk;
  bool abandoning_ = false;
  EventLoop::TimerId timer_ = 0;
  bool timer_armed_ = false;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_SERVING_FETCH_JOB_H_
