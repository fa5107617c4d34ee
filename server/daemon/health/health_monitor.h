// HealthMonitor: whether this daemon can serve, found out by serving. It runs a SelfCheck and asks
// every data thread for a sign of life, again and again, on a loop of its own; its answer is read
// from anywhere and never waits for the data path.
//
//   live      false only when a data thread has been silent for `dead_after`: nothing but a restart
//             helps.
//   ready     the latest self-check succeeded and is recent, every data thread answers, and the
//             daemon is not ending.
//   degraded  serves, but not as well as it should: see the reasons.
//
// Nothing outside this process takes part, so another process's death never changes the answer.
//
// Thread safety: every method may be called from any thread but those of the loops involved.

#ifndef PENSTOCK_SERVER_DAEMON_HEALTH_HEALTH_MONITOR_H_
#define PENSTOCK_SERVER_DAEMON_HEALTH_HEALTH_MONITOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/transport/endpoint.h"
#include "common/transport/event_loop.h"
#include "server/daemon/health/self_check.h"

namespace penstock {

struct HealthOptions {
  Duration interval = std::chrono::seconds(2);     // Between two self-checks.
  Duration timeout = std::chrono::seconds(3);      // Of one self-check, and of a thread's answer.
  Duration dead_after = std::chrono::seconds(60);  // See live.
  uint64_t chunk_bytes = 64u << 10;
};

// What the monitor watches. All of it outlives the monitor.
struct HealthSubject {
  std::vector<EventLoop*> data_loops;
  std::vector<Address> addresses;  // Where the daemon can be dialed from here; taken in turns.
  std::string client_name;         // Of the self-check's sessions.
};

struct HealthReport {
  struct Reason {
    std::string what;  // Stable word: "data-thread", "self-check", "tier-full", "ending", ...
    std::string detail;
  };
  bool live = true;
  bool ready = false;
  bool degraded = false;
  std::vector<Reason> reasons;
  Duration check_age{};   // Since the latest self-check ended; zero before the first one.
  Duration check_took{};  // Of that one.
  uint64_t checks = 0, failed_checks = 0;
  Duration slowest_answer{};  // Of the data threads' latest signs of life.
};

class HealthMonitor {
 public:
  // Starts watching: the first self-check runs at once.
  // Errors: kResourceExhausted (the loop's thread).
  static Result<std::unique_ptr<HealthMonitor>> Start(const HealthOptions& options,
                                                      HealthSubject subject);
  // Waits for a self-check that is under way (bounded by its timeout).
  ~HealthMonitor();
  HealthMonitor(const HealthMonitor&) = delete;
  HealthMonitor& operator=(const HealthMonitor&) = delete;

  // What is known now. Never blocks on the data path.
  HealthReport Report() const ABSL_LOCKS_EXCLUDED(mu_);
  // Runs a self-check now, or joins the one that is under way, and reports after it.
  HealthReport Check() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until a self-check has succeeded. Errors: what the latest one said, at `deadline`.
  Status WaitReady(const Deadline& deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // The daemon is ending: not ready from now on, and no new self-checks.
  void SetEnding() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A data thread's signs of life. Shared with the functions posted to it, which may run late.
  struct Pulse {
    Mutex mu;
    bool waiting ABSL_GUARDED_BY(mu) = false;
    MonotonicTime asked ABSL_GUARDED_BY(mu);
    Duration took ABSL_GUARDED_BY(mu){};
  };

  HealthMonitor(const HealthOptions& options, HealthSubject subject);
  void Round();       // On loop_.
  void AskPulses();   // On loop_.
  void StartCheck();  // On loop_.
  void OnChecked(const SelfCheckResult& result) ABSL_LOCKS_EXCLUDED(mu_);
  void JudgePulses(HealthReport& report, MonotonicTime now) const;
  void JudgeCheckLocked(HealthReport& report, MonotonicTime now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const HealthOptions options_;
  const HealthSubject subject_;
  const MonotonicTime started_ = MonotonicNow();
  std::vector<std::shared_ptr<Pulse>> pulses_;
  std::unique_ptr<EventLoop> loop_;

  // On loop_ only.
  bool checking_ = false;
  bool stopped_ = false;
  uint64_t number_ = 0;
  EventLoop::TimerId timer_ = 0;

  mutable Mutex mu_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t checks_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t failed_ ABSL_GUARDED_BY(mu_) = 0;
  bool in_progress_ ABSL_GUARDED_BY(mu_) = false;
  MonotonicTime latest_ ABSL_GUARDED_BY(mu_);
  SelfCheckResult result_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_HEALTH_HEALTH_MONITOR_H_
