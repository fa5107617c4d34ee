// StoreJob: one STORE request, from its first byte to its reply.
//
// An item goes through: refused (final), or granted space and receiving -> committing -> final.
// What fails while bytes are on their way into the item's memory is doomed first, and becomes
// final when nothing writes there any more: space is never given back under a writer. Past the
// deadline, or on a cancellation, the request is abandoned on the session before any space is
// given back, so that what a frozen writer sends later lands nowhere.
//
// Threads: the session's loop only. Commits of large chunks run on the WorkerPool and come back to
// the loop; they keep what they need and never touch the job.

#ifndef PENSTOCK_SERVER_DAEMON_SERVING_STORE_JOB_H_
#define PENSTOCK_SERVER_DAEMON_SERVING_STORE_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/protocol/messages.h"
#include "common/transport/session.h"
#include "server/daemon/serving/namespace_view.h"
#include "server/daemon/serving/received_ranges.h"
#include "server/daemon/serving/serving.h"

namespace penstock {

class StoreJob : public std::enable_shared_from_this<StoreJob> {
 public:
  // Where a job belongs. All outlive it.
  struct Context {
    Session& session;
    Serving& serving;
    ServingCounters& counters;
    std::shared_ptr<SessionRecord> record;
    OwnerId owner;
  };
  // Called as the last thing a job does, after its reply was sent: its owner lets go of it.
  using OnFinished = std::function<void(uint64_t request_id)>;

  StoreJob(Context context, uint64_t request_id, InFlight::Slot slot, OnFinished on_finished);
  // Of a job that is not finished: the session is gone, and nothing writes into its items any more.
  ~StoreJob();
  StoreJob(const StoreJob&) = delete;
  StoreJob& operator=(const StoreJob&) = delete;

  // Asks for space for every item, answers with a grant unless the request is eager, and arms the
  // deadline. The request's views are not kept. Called once, by a holder of a shared_ptr.
  void Start(const StoreRequest& request, NamespaceView& namespaces);

  // As of SessionEvents.
  bool Locate(const DataHeader& header, Pieces& pieces);
  void OnData(const DataHeader& header, const Status& status);
  void OnDataFailed(const DataHeader& header);
  // Bytes of a frame that Locate() accepted have landed elsewhere (EarlyData): copies them to where
  // they belong, if they are still wanted, and does as OnData().
  void Deliver(const DataHeader& header, ByteSpan bytes, const Status& status);
  // Some of the request's bytes were thrown away for want of room: what is not complete fails.
  void OnDataLost();

  // The client does not want it any more. The reply says kCancelled, unless every item is already
  // being committed.
  void Cancel() { GiveUp(Code::kCancelled); }
  // It was given up: once finished, the wire touches none of its memory, and tells of no more data.
  bool abandoned() const { return given_up_ != Code::kOk; }

 private:
  enum class State : uint8_t { kReceiving, kDoomed, kCommitting, kFinal };
  struct Item {
    explicit Item(uint64_t bytes) : ranges(bytes) {}
    std::optional<PendingChunk> chunk;  // While kReceiving or kDoomed.
    ReceivedRanges ranges;              // Promised to frames.
    uint64_t landed = 0;                // Bytes that have arrived.
    uint32_t in_transit = 0;            // Frames located and not landed.
    NamespaceId ns = NamespaceId::kNone;
    State state = State::kReceiving;
    Code status = Code::kOk;  // Once doomed or final.
  };
  struct Commit;  // What a commit on a worker keeps.

  Code BeginItem(const StoreRequest& request, const StoreRequest::Item& wanted,
                 NamespaceView& namespaces, Item& item);
  void CountRefusal(Code code);
  void ArmDeadline(uint32_t deadline_ms);
  void CommitItem(uint32_t index);
  static Status RunCommit(Commit& commit);
  void OnCommitted(uint32_t index, Code code);
  // Fails one item as soon as nothing writes into it.
  void Doom(Item& item, Code code);
  void FailNow(Item& item, Code code);
  void GiveUp(Code why);
  void OnAbandoned();
  // Replies and finishes when every item is final. The job may be gone afterwards.
  void MaybeFinish();

  const Context context_;
  EventLoop& loop_;  // The session's, which outlives the session.
  const uint64_t request_id_;
  const MonotonicTime since_ = MonotonicNow();
  const OnFinished on_finished_;
  InFlight::Slot slot_;
  std::vector<Item> items_;
  size_t open_ = 0;  // Items that are not final.
  bool starting_ = true;
  bool finished_ = false;
  // Why the request was given up; kOk while it was not.
  Code given_up_ = Code::kOk;
  EventLoop::TimerId timer_ = 0;
  bool timer_armed_ = false;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_SERVING_STORE_JOB_H_
