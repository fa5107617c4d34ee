// WorkerPool: a few threads for work that would hold up a data thread: checking the checksums of
// large chunks.
//
// Thread safety: every method may be called from any thread.

#ifndef PENSTOCK_SERVER_DAEMON_SERVING_WORKER_POOL_H_
#define PENSTOCK_SERVER_DAEMON_SERVING_WORKER_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace penstock {

class WorkerPool {
 public:
  // Errors: kResourceExhausted, when a thread cannot be started.
  static Result<std::unique_ptr<WorkerPool>> Start(uint32_t threads, size_t max_queued);
  // Stop()s.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Runs `task` on one of the threads. False, and `task` is not run, when the queue is full or the
  // pool is stopping: the caller then does the work itself, which is the back-pressure.
  bool TrySubmit(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs what is queued, then ends the threads. Idempotent. Not from a worker.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  size_t queued() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit WorkerPool(size_t max_queued) : max_queued_(max_queued) {}
  void Work() ABSL_LOCKS_EXCLUDED(mu_);

  const size_t max_queued_;
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Written by Start() and Stop() only.
  std::vector<std::thread> threads_;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_SERVING_WORKER_POOL_H_
