#include "server/daemon/serving/worker_pool.h"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "fmt/format.h"

namespace penstock {

Result<std::unique_ptr<WorkerPool>> WorkerPool::Start(uint32_t threads, size_t max_queued) {
  std::unique_ptr<WorkerPool> pool(new WorkerPool(max_queued));
  for (uint32_t i = 0; i < threads; ++i) {
    // The standard library reports a refused thread by an exception; it ends here.
    try {
      pool->threads_.emplace_back([raw = pool.get()] { raw->Work(); });
    } catch (const std::system_error& error) {
      return Status(Code::kResourceExhausted,
                    fmt::format("worker thread {} of {} cannot be started: {} (RLIMIT_NPROC or "
                                "the pids limit of the control group)",
                                i + 1, threads, error.what()));
    }
  }
  return pool;
}

WorkerPool::~WorkerPool() { Stop(); }

bool WorkerPool::TrySubmit(std::function<void()> task) {
  MutexLock lock(mu_);
  if (stopping_ || tasks_.size() >= max_queued_) return false;
  tasks_.push_back(std::move(task));
  changed_.Signal();
  return true;
}

void WorkerPool::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

size_t WorkerPool::queued() const {
  MutexLock lock(mu_);
  return tasks_.size();
}

void WorkerPool::Work() {
  pthread_setname_np(pthread_self(), "penstock-verify");
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mu_);
      while (tasks_.empty() && !stopping_) changed_.Wait(mu_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace penstock
