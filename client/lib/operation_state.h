// OperationState: one operation, shared by the caller's handle and the client's loop.
//
// The loop owns it until Complete(); then its results never change, and any thread may read them.

#ifndef PENSTOCK_CLIENT_LIB_OPERATION_STATE_H_
#define PENSTOCK_CLIENT_LIB_OPERATION_STATE_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "client/lib/client.h"
#include "common/base/gate.h"
#include "common/base/mutex.h"
#include "common/transport/event_loop.h"

namespace penstock {

class Call;
class OperationState;

// What an operation needs from its client. It outlives every operation that is not complete.
class OperationOwner {
 public:
  virtual ~OperationOwner() = default;
  virtual EventLoop& loop() = 0;
  // On the loop: ends `operation` with `why` as soon as nothing touches its memory.
  virtual void Abort(const std::shared_ptr<OperationState>& operation, const Status& why) = 0;
};

class OperationState final : public Operation, public std::enable_shared_from_this<OperationState> {
 public:
  enum class Kind { kOther, kFetch, kStore };

  OperationState(OperationOwner& owner, Kind kind, const Deadline& deadline, OnDone on_done);

  bool Done() const override { return done_.load(std::memory_order_acquire); }
  bool Wait(const Deadline& deadline) override;
  void Cancel() override;
  Status status() const override { return status_; }
  const std::vector<ItemResult>& items() const override { return items_; }
  const MatchOutcome& match() const override { return match_; }
  const StatReply& stat() const override { return stat_; }

  Kind kind() const { return kind_; }
  const Deadline& deadline() const { return deadline_; }

  // The rest: by the thread that makes the operation before it is started, then on the loop alone,
  // and never after Complete().

  std::vector<ItemResult>& mutable_items() { return items_; }
  MatchOutcome& mutable_match() { return match_; }
  // Keeps a copy of what `reply` points to.
  void SetStat(const StatReply& reply);
  // The first status that is not kOk stays.
  void AddStatus(const Status& status) {
    if (status_.ok()) status_ = status;
  }
  // Keeps a registration of memory alive until the operation is done.
  void Hold(std::shared_ptr<void> owner, Gate::Pass pass) {
    passes_.emplace_back(std::move(owner), std::move(pass));
  }

  // What it is about, kept open until it is done: one for each item, or one for all, or (of a
  // match) those of the groups.
  std::vector<Namespace> namespaces;

  // Calls queued and on their way, and the timer of the deadline.
  std::vector<std::weak_ptr<Call>> calls;
  size_t open_calls = 0;
  EventLoop::TimerId timer = 0;
  Status abort_reason;  // Not kOk: being ended.

  // Wakes those who wait; the callback follows from the loop (or, for an operation that never
  // reached it, from there all the same). In a forked child, which has no loop, it is called here.
  void Complete(bool in_forked_child = false);

 private:
  // A fork()ed child has no loop that could end anything.
  bool InForkedChild() const;

  OperationOwner& owner_;
  const Kind kind_;
  const Deadline deadline_;
  OnDone on_done_;
  const pid_t pid_;
  // The gate of a pass lives in what is kept beside it.
  std::vector<std::pair<std::shared_ptr<void>, Gate::Pass>> passes_;

  Status status_;
  std::vector<ItemResult> items_;
  MatchOutcome match_;
  StatReply stat_;
  std::vector<std::byte> stat_manifest_;

  std::atomic<bool> done_ = false;  // Set under mu_.
  Mutex mu_;
  CondVar changed_;
};

// What the caller holds: its end cancels.
class OperationHandle final : public Operation {
 public:
  explicit OperationHandle(std::shared_ptr<OperationState> state) : state_(std::move(state)) {}
  ~OperationHandle() override { state_->Cancel(); }

  bool Done() const override { return state_->Done(); }
  bool Wait(const Deadline& deadline) override { return state_->Wait(deadline); }
  void Cancel() override { state_->Cancel(); }
  Status status() const override { return state_->status(); }
  const std::vector<ItemResult>& items() const override { return state_->items(); }
  const MatchOutcome& match() const override { return state_->match(); }
  const StatReply& stat() const override { return state_->stat(); }

 private:
  const std::shared_ptr<OperationState> state_;
};

}  // namespace penstock

#endif  // PENSTOCK_CLIENT_LIB_OPERATION_STATE_H_
