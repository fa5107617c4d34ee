// EventLoop: one thread that waits in epoll and runs callbacks. It sleeps when there is nothing to
// do.

#ifndef PENSTOCK_COMMON_TRANSPORT_EVENT_LOOP_H_
#define PENSTOCK_COMMON_TRANSPORT_EVENT_LOOP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/deadline.h"
#include "common/base/status.h"

namespace penstock {

class EventLoop {
 public:
  using TimerId = uint64_t;

  // Creates the loop and starts its thread, named `name` (at most 15 characters are kept).
  // Errors: kResourceExhausted naming the limit.
  static Result<std::unique_ptr<EventLoop>> Start(const std::string& name);

  // Stop()s.
  virtual ~EventLoop() = default;

  // Runs everything posted so far, then ends the thread. Idempotent; not from the loop's thread.
  // Functions posted later are destroyed without being run.
  virtual void Stop() = 0;

  // Runs `fn` on the loop's thread. From any thread; in order for each caller.
  virtual void Post(std::function<void()> fn) = 0;
  // Post() and wait. Runs `fn` directly when called on the loop's thread.
  virtual void Run(const std::function<void()>& fn) = 0;
  virtual bool InLoop() const = 0;

  // The rest: only on the loop's thread.

  // Calls `fn(epoll events)` while `fd` is ready. One watch a descriptor.
  virtual Status Watch(int fd, uint32_t events, std::function<void(uint32_t)> fn) = 0;
  virtual void SetEvents(int fd, uint32_t events) = 0;
  // Safe inside the watch's own callback. The descriptor may be closed afterwards.
  virtual void Unwatch(int fd) = 0;

  virtual TimerId After(Duration delay, std::function<void()> fn) = 0;
  // A timer that has fired, or was cancelled, is ignored.
  virtual void CancelTimer(TimerId id) = 0;

  // Calls `poll` before each sleep until it returns false, and `arm` last, which may veto the sleep
  // by returning false (UCX's progress and event descriptor). Returns an id for RemovePoller().
  virtual uint64_t AddPoller(std::function<bool()> poll, std::function<bool()> arm) = 0;
  virtual void RemovePoller(uint64_t id) = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_EVENT_LOOP_H_
