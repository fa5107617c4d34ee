// LogWriter: writes lines to a descriptor from a thread of its own, so that whoever logs never
// waits for a pipe that nobody reads or for a disk that does not answer.
//
// Lines wait in a bounded queue. One that finds no room is dropped and counted, and the count is
// written as a line of its own as soon as the descriptor takes lines again.

#ifndef PENSTOCK_COMMON_LOG_LOG_WRITER_H_
#define PENSTOCK_COMMON_LOG_LOG_WRITER_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "common/base/deadline.h"
#include "common/base/mutex.h"

namespace penstock {

// Thread-safe. Of no use in a child that forked: the thread stays with the parent.
class LogWriter {
 public:
  // `fd` is only used, not owned. `lost_line(n)` gives the line that tells of n lost lines, without
  // a newline; called on the writer's thread, and must not log.
  LogWriter(int fd, size_t max_queued_bytes, std::function<std::string(uint64_t)> lost_line);
  // Gives up on what the descriptor does not take at once.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Takes `line` without its newline, or drops it. Never waits for the descriptor.
  void Push(std::string line) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until what was pushed before has been written or given up. False when `deadline` was
  // first.
  bool Flush(const Deadline& deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // The process that can use it.
  pid_t process() const { return process_; }
  // Lines that were dropped or that the descriptor refused.
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until the descriptor has taken it. False when it cannot, or when stopped.
  bool WriteLine(std::string line);

  const int fd_;
  const size_t max_queued_bytes_;
  const std::function<std::string(uint64_t)> lost_line_;
  const pid_t process_;
  std::atomic<uint64_t> lost_{0};
  std::atomic<bool> stop_{false};

  Mutex mu_;
  CondVar changed_;
  std::deque<std::string> queue_ ABSL_GUARDED_BY(mu_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // The line being written included.
  uint64_t pushed_ ABSL_GUARDED_BY(mu_) = 0, done_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t unreported_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_;  // Not joinable where the system had none to give.
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_LOG_LOG_WRITER_H_
