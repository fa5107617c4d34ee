#include "common/transport/event_loop.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <limits>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/transport/socket.h"

namespace penstock {
namespace {

// Events taken from the kernel in one turn. A watch that has more to do is called again next turn.
constexpr int kEventsPerTurn = 64;
constexpr uint64_t kWakeTag = 0;
// Batches of posted functions that run before descriptors and timers get their turn.
constexpr int kPostRounds = 4;
// How often a stopping loop looks for functions that its last functions posted.
constexpr int kLastRounds = 1000;

// One thread tells another that something is over.
class DoneSignal {
 public:
  void Set() {
    MutexLock lock(mu_);
    done_ = true;
    changed_.SignalAll();
  }
  void Wait() {
    MutexLock lock(mu_);
    while (!done_) changed_.Wait(mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

class EpollLoop final : public EventLoop {
 public:
  EpollLoop(UniqueFd epoll, UniqueFd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  ~EpollLoop() override { Stop(); }

  Status StartThread(const std::string& name);

  void Stop() override;
  void Post(std::function<void()> fn) override;
  void Run(const std::function<void()>& fn) override;
  bool InLoop() const override { return std::this_thread::get_id() == thread_id_.load(); }

  Status Watch(int fd, uint32_t events, std::function<void(uint32_t)> fn) override;
  void SetEvents(int fd, uint32_t events) override;
  void Unwatch(int fd) override;
  TimerId After(Duration delay, std::function<void()> fn) override;
  void CancelTimer(TimerId id) override;
  uint64_t AddPoller(std::function<bool()> poll, std::function<bool()> arm) override;
  void RemovePoller(uint64_t id) override;

 private:
  struct WatchEntry {
    uint32_t generation;
    uint32_t events;
    std::shared_ptr<std::function<void(uint32_t)>> fn;
  };
  struct TimerEntry {
    MonotonicTime at;
    TimerId id;
    // std::push_heap keeps the largest in front: the earliest is the largest.
    bool operator<(const TimerEntry& other) const {
      return std::tie(at, id) > std::tie(other.at, other.id);
    }
  };
  struct Poller {
    uint64_t id;
    std::function<bool()> poll;
    std::function<bool()> arm;
    bool removed = false;  // A turn in progress may still hold it.
  };

  void Main();
  void Wake();
  // True if the loop is to go on.
  bool RunPosted();
  bool HasPosted();
  bool RunPollers();
  bool ArmPollers();
  void RunTimers();
  void CompactTimers();
  int WaitMillis();
  void Dispatch(uint64_t tag, uint32_t events);

  const UniqueFd epoll_;
  const UniqueFd wake_;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_;

  Mutex mu_;
  std::vector<std::function<void()>> posted_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  Mutex join_mu_;

  // The loop thread's own.
  int last_rounds_ = 0;
  absl::flat_hash_map<int, WatchEntry> watches_;
  uint32_t next_generation_ = 1;
  std::vector<TimerEntry> timer_heap_;
  absl::flat_hash_map<TimerId, std::function<void()>> timers_;
  TimerId next_timer_ = 1;
  std::vector<std::shared_ptr<Poller>> pollers_;
  uint64_t next_poller_ = 1;
};

Status EpollLoop::StartThread(const std::string& name) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeTag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    return Status(Code::kResourceExhausted, fmt::format("epoll_ctl: {}", ErrnoText(errno)));
  }
  // Signals are the main thread's business: the new thread inherits a full mask.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    thread_ = std::thread([this] { Main(); });
    pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
  } catch (const std::system_error& e) {
    status = Status(
        Code::kResourceExhausted,
        fmt::format("cannot start the thread {} (ulimit -u, cgroup pids.max): {}", name, e.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

void EpollLoop::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  Wake();
  MutexLock lock(join_mu_);
  if (thread_.joinable()) thread_.join();
}

void EpollLoop::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full: then the loop is awake anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

void EpollLoop::Post(std::function<void()> fn) {
  bool wake = false;
  {
    MutexLock lock(mu_);
    if (ended_) return;  // `fn` is destroyed after the lock is free.
    wake = posted_.empty();
    posted_.push_back(std::move(fn));
  }
  // The loop's own thread looks at the queue before it sleeps.
  if (wake && !InLoop()) Wake();
}

void EpollLoop::Run(const std::function<void()>& fn) {
  if (InLoop()) return fn();
  const auto done = std::make_shared<DoneSignal>();
  // Goes with the function, whether it is run or not.
  std::shared_ptr<void> guard(nullptr, [done](void*) { done->Set(); });
  Post([&fn, guard = std::move(guard)] { fn(); });
  done->Wait();
}

bool EpollLoop::RunPosted() {
  std::vector<std::function<void()>> batch;
  bool stopping = false;
  {
    MutexLock lock(mu_);
    batch.swap(posted_);
    stopping = stopping_;
    // A function that posts itself for ever cannot keep the loop from ending.
    if (stopping && (batch.empty() || ++last_rounds_ > kLastRounds)) {
      ended_ = true;
      return false;
    }
  }
  for (std::function<void()>& fn : batch) {
    fn();
    fn = nullptr;  // What it holds is freed in order, too.
  }
  return true;
}

bool EpollLoop::RunPollers() {
  bool progress = false;
  const auto pollers = pollers_;  // A poller may add or remove some.
  for (const auto& poller : pollers) {
    if (!poller->removed) progress |= poller->poll();
  }
  return progress;
}

bool EpollLoop::ArmPollers() {
  const auto pollers = pollers_;
  return std::all_of(pollers.begin(), pollers.end(),
                     [](const auto& poller) { return poller->removed || poller->arm(); });
}

void EpollLoop::RunTimers() {
  if (timer_heap_.empty()) return;
  const MonotonicTime now = MonotonicNow();
  // Timers made meanwhile are for the next turn, so that After(0) cannot keep the loop here.
  const TimerId end = next_timer_;
  while (!timer_heap_.empty() && timer_heap_.front().at <= now && timer_heap_.front().id < end) {
    std::pop_heap(timer_heap_.begin(), timer_heap_.end());
    const TimerId id = timer_heap_.back().id;
    timer_heap_.pop_back();
    if (auto node = timers_.extract(id)) node.mapped()();
  }
}

bool EpollLoop::HasPosted() {
  MutexLock lock(mu_);
  return !posted_.empty() || stopping_;
}

int EpollLoop::WaitMillis() {
  if (HasPosted()) return 0;
  while (!timer_heap_.empty() && !timers_.contains(timer_heap_.front().id)) {
    std::pop_heap(timer_heap_.begin(), timer_heap_.end());
    timer_heap_.pop_back();
  }
  if (timer_heap_.empty()) return -1;
  const Duration left = timer_heap_.front().at - MonotonicNow();
  if (left <= Duration::zero()) return 0;
  const auto millis = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::min<int64_t>(millis, std::numeric_limits<int>::max()));
}

void EpollLoop::Dispatch(uint64_t tag, uint32_t events) {
  if (tag == kWakeTag) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
    return;
  }
  // An event of this turn may belong to a watch that an earlier callback removed, perhaps with the
  // same descriptor number in use again: the generation tells.
  const auto it = watches_.find(static_cast<int>(tag & 0xffffffffu));
  if (it == watches_.end() || it->second.generation != static_cast<uint32_t>(tag >> 32)) return;
  const auto fn = it->second.fn;  // The callback may Unwatch() itself.
  (*fn)(events);
}

void EpollLoop::Main() {
  thread_id_.store(std::this_thread::get_id());
  std::array<epoll_event, kEventsPerTurn> events;
  int rounds = 0;
  while (RunPosted()) {
    // What callbacks post is mostly for the end of their own turn.
    if (++rounds < kPostRounds && HasPosted()) continue;
    rounds = 0;
    const bool busy = RunPollers();
    int timeout = WaitMillis();
    if (timeout != 0 && (busy || !ArmPollers())) timeout = 0;
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), timeout);
    for (int i = 0; i < count; ++i) Dispatch(events[i].data.u64, events[i].events);
    RunTimers();
  }
  // What callbacks hold is destroyed on the thread that they belonged to. It may come back for
  // Unwatch() and the like. Pollers go last: what the others hold may use them.
  const auto pollers = std::exchange(pollers_, {});
  const auto timers = std::exchange(timers_, {});
  const auto watches = std::exchange(watches_, {});
}

Status EpollLoop::Watch(int fd, uint32_t events, std::function<void(uint32_t)> fn) {
  if (watches_.contains(fd)) {
    return Status(Code::kInternal, fmt::format("descriptor {} is watched already", fd));
  }
  const uint32_t generation = next_generation_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = (uint64_t{generation} << 32) | static_cast<uint32_t>(fd);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return Status(Code::kResourceExhausted,
                  fmt::format("epoll_ctl (fs.epoll.max_user_watches): {}", ErrnoText(errno)));
  }
  if (next_generation_ == 0) next_generation_ = 1;  // 0 would collide with kWakeTag for fd 0.
  watches_[fd] = {generation, events,
                  std::make_shared<std::function<void(uint32_t)>>(std::move(fn))};
  return Status::Ok();
}

void EpollLoop::SetEvents(int fd, uint32_t events) {
  const auto it = watches_.find(fd);
  if (it == watches_.end() || it->second.events == events) return;
  it->second.events = events;
  epoll_event event{};
  event.events = events;
  event.data.u64 = (uint64_t{it->second.generation} << 32) | static_cast<uint32_t>(fd);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EpollLoop::Unwatch(int fd) {
  const auto node = watches_.extract(fd);
  if (!node) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EpollLoop::After(Duration delay, std::function<void()> fn) {
  const TimerId id = next_timer_++;
  timers_.emplace(id, std::move(fn));
  timer_heap_.push_back({MonotonicNow() + std::clamp<Duration>(delay, {}, Deadline::kMax), id});
  std::push_heap(timer_heap_.begin(), timer_heap_.end());
  return id;
}

void EpollLoop::CancelTimer(TimerId id) {
  const auto node = timers_.extract(id);
  if (timer_heap_.size() > 2 * timers_.size() + 64) CompactTimers();
}

// Cancelled timers leave their place in the heap: drops those places once they are the majority.
void EpollLoop::CompactTimers() {
  std::erase_if(timer_heap_,
                [this](const TimerEntry& entry) { return !timers_.contains(entry.id); });
  std::make_heap(timer_heap_.begin(), timer_heap_.end());
}

uint64_t EpollLoop::AddPoller(std::function<bool()> poll, std::function<bool()> arm) {
  const uint64_t id = next_poller_++;
  pollers_.push_back(std::make_shared<Poller>(Poller{id, std::move(poll), std::move(arm)}));
  return id;
}

void EpollLoop::RemovePoller(uint64_t id) {
  for (const auto& poller : pollers_) {
    if (poller->id != id) continue;
    const auto keep = poller;  // It may be running, and ours could be the last reference.
    keep->removed = true;
    std::erase(pollers_, keep);
    return;
  }
}

}  // namespace

Result<std::unique_ptr<EventLoop>> EventLoop::Start(const std::string& name) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid()) {
    return Status(Code::kResourceExhausted,
                  fmt::format("cannot make an event loop (ulimit -n): {}", ErrnoText(errno)));
  }
  auto loop = std::make_unique<EpollLoop>(std::move(epoll), std::move(wake));
  PENSTOCK_RETURN_IF_ERROR(loop->StartThread(name));
  return std::unique_ptr<EventLoop>(std::move(loop));
}

}  // namespace penstock
