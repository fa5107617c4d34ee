#include "common/log/log_writer.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <system_error>
#include <utility>

namespace penstock {
namespace {

// How often a thread that waits for the descriptor looks whether it shall stop.
constexpr int kLookMillis = 100;

// Signals belong to the program's own threads; SIGPIPE would end it for a reader that left.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

LogWriter::LogWriter(int fd, size_t max_queued_bytes,
                     std::function<std::string(uint64_t)> lost_line)
    : fd_(fd),
      max_queued_bytes_(max_queued_bytes),
      lost_line_(std::move(lost_line)),
      process_(getpid()) {
  const NoSignals inherited;
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {  // Its lines are lost, and counted.
  }
}

LogWriter::~LogWriter() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void LogWriter::Push(std::string line) {
  line += '\n';
  MutexLock lock(mu_);
  if (!thread_.joinable() || queued_bytes_ + line.size() > max_queued_bytes_) {
    lost_.fetch_add(1, std::memory_order_relaxed);
    ++unreported_;
    return;
  }
  queued_bytes_ += line.size();
  ++pushed_;
  queue_.push_back(std::move(line));
  changed_.SignalAll();
}

bool LogWriter::Flush(const Deadline& deadline) {
  MutexLock lock(mu_);
  const uint64_t wanted = pushed_;
  while (done_ < wanted) {
    if (deadline.Expired()) return false;
    changed_.WaitUntil(mu_, deadline.at());
  }
  return true;
}

void LogWriter::Run() {
  pthread_setname_np(pthread_self(), "penstock-log");
  for (;;) {
    std::string line;
    {
      MutexLock lock(mu_);
      while (queue_.empty() && !stop_) changed_.Wait(mu_);
      if (queue_.empty()) return;
      line = std::move(queue_.front());
      queue_.pop_front();
    }
    const size_t bytes = line.size();
    const bool written = WriteLine(std::move(line));
    if (!written) lost_.fetch_add(1, std::memory_order_relaxed);
    uint64_t lost = 0;
    {
      MutexLock lock(mu_);
      queued_bytes_ -= bytes;
      if (!written) ++unreported_;
      // Behind what was there before them.
      if (written && queue_.empty()) lost = std::exchange(unreported_, 0);
    }
    if (lost > 0 && !WriteLine(lost_line_(lost) + '\n')) {
      MutexLock lock(mu_);
      unreported_ += lost;
    }
    MutexLock lock(mu_);
    ++done_;
    changed_.SignalAll();
  }
}

bool LogWriter::WriteLine(std::string line) {
  size_t at = 0;
  while (at < line.size()) {
    pollfd ready{fd_, POLLOUT, 0};
    const int count = poll(&ready, 1, stop_ ? 0 : kLookMillis);
    if (count < 0 && errno != EINTR) return false;
    if (count <= 0) {
      if (stop_) return false;
      continue;
    }
    // A pipe that is ready takes so much at once: the thread can always be stopped.
    const ssize_t wrote =
        write(fd_, line.data() + at, std::min<size_t>(line.size() - at, PIPE_BUF));
    if (wrote < 0 && errno != EINTR && errno != EAGAIN) return false;
    if (wrote > 0) at += static_cast<size_t>(wrote);
  }
  return true;
}

}  // namespace penstock
