#include "server/daemon/health/health_monitor.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"

namespace penstock {
namespace {

int64_t Millis(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

// A tier that cannot take a chunk now is no fault of the daemon: reads go on.
bool IsFullness(Code code) { return code == Code::kAllPinned || code == Code::kBusy; }

}  // namespace

HealthMonitor::HealthMonitor(const HealthOptions& options, HealthSubject subject)
    : options_(options), subject_(std::move(subject)) {
  for (size_t i = 0; i < subject_.data_loops.size(); ++i) {
    pulses_.push_back(std::make_shared<Pulse>());
  }
}

Result<std::unique_ptr<HealthMonitor>> HealthMonitor::Start(const HealthOptions& options,
                                                            HealthSubject subject) {
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<EventLoop> loop, EventLoop::Start("penstock-health"));
  std::unique_ptr<HealthMonitor> monitor(new HealthMonitor(options, std::move(subject)));
  monitor->loop_ = std::move(loop);
  monitor->loop_->Post([raw = monitor.get()] { raw->Round(); });
  return monitor;
}

HealthMonitor::~HealthMonitor() {
  loop_->Run([this] {
    stopped_ = true;
    loop_->CancelTimer(timer_);
  });
  {
    MutexLock lock(mu_);
    while (in_progress_) changed_.Wait(mu_);
  }
  loop_->Stop();
}

void HealthMonitor::Round() {
  if (stopped_) return;
  AskPulses();
  StartCheck();
  timer_ = loop_->After(options_.interval, [this] { Round(); });
}

void HealthMonitor::AskPulses() {
  for (size_t i = 0; i < pulses_.size(); ++i) {
    const std::shared_ptr<Pulse>& pulse = pulses_[i];
    {
      MutexLock lock(pulse->mu);
      if (pulse->waiting) continue;  // One question at a time: a stuck thread collects none.
      pulse->waiting = true;
      pulse->asked = MonotonicNow();
    }
    subject_.data_loops[i]->Post([pulse] {
      MutexLock lock(pulse->mu);
      pulse->waiting = false;
      pulse->took = MonotonicNow() - pulse->asked;
    });
  }
}

void HealthMonitor::StartCheck() {
  if (checking_ || subject_.addresses.empty()) return;
  {
    MutexLock lock(mu_);
    if (ending_) return;
    in_progress_ = true;
  }
  checking_ = true;
  ++number_;
  RunSelfCheck(*loop_,
               {.address = subject_.addresses[number_ % subject_.addresses.size()],
                .client_name = subject_.client_name,
                .patience = options_.timeout,
                .chunk_bytes = options_.chunk_bytes,
                .number = number_},
               [this](const SelfCheckResult& result) { OnChecked(result); });
}

void HealthMonitor::OnChecked(const SelfCheckResult& result) {
  checking_ = false;
  MutexLock lock(mu_);
  in_progress_ = false;
  ++checks_;
  if (!result.status.ok()) ++failed_;
  latest_ = MonotonicNow();
  result_ = result;
  changed_.SignalAll();
}

HealthReport HealthMonitor::Report() const {
  HealthReport report;
  const MonotonicTime now = MonotonicNow();
  report.ready = true;
  JudgePulses(report, now);
  MutexLock lock(mu_);
  JudgeCheckLocked(report, now);
  if (ending_) {
    report.ready = false;
    report.reasons.push_back({"ending", "the daemon was told to end"});
  }
  return report;
}

void HealthMonitor::JudgePulses(HealthReport& report, MonotonicTime now) const {
  for (size_t i = 0; i < pulses_.size(); ++i) {
    MutexLock lock(pulses_[i]->mu);
    const Duration silent = pulses_[i]->waiting ? now - pulses_[i]->asked : Duration::zero();
    report.slowest_answer = std::max({report.slowest_answer, silent, pulses_[i]->took});
    if (silent <= options_.timeout) continue;
    report.ready = false;
    if (silent > options_.dead_after) report.live = false;
    report.reasons.push_back(
        {"data-thread",
         fmt::format("data thread {} has not answered for {} ms", i, Millis(silent))});
  }
}

void HealthMonitor::JudgeCheckLocked(HealthReport& report, MonotonicTime now) const {
  report.checks = checks_;
  report.failed_checks = failed_;
  const MonotonicTime since = checks_ == 0 ? started_ : latest_;
  if (checks_ > 0) {
    report.check_age = now - latest_;
    report.check_took = result_.took;
  }
  // A check ends within its timeout, and the next one starts an interval after the last.
  const Duration stale = options_.interval + 2 * options_.timeout;
  if (now - since > stale) {
    report.ready = false;
    report.reasons.push_back(
        {"self-check", fmt::format("none has ended for {} ms", Millis(now - since))});
  } else if (checks_ == 0) {
    report.ready = false;
    report.reasons.push_back({"starting", "the first self-check is under way"});
  } else if (!result_.status.ok() && IsFullness(result_.status.code())) {
    report.degraded = true;
    report.reasons.push_back({"tier-full", result_.status.ToString()});
  } else if (!result_.status.ok()) {
    report.ready = false;
    report.reasons.push_back({"self-check", result_.status.ToString()});
  }
}

HealthReport HealthMonitor::Check() {
  uint64_t before = 0;
  {
    MutexLock lock(mu_);
    before = checks_;
  }
  loop_->Post([this] { StartCheck(); });
  const Deadline deadline = Deadline::After(options_.timeout + std::chrono::seconds(1));
  {
    MutexLock lock(mu_);
    while (checks_ == before && !ending_) {
      if (!changed_.WaitUntil(mu_, deadline.at())) break;
    }
  }
  return Report();
}

Status HealthMonitor::WaitReady(const Deadline& deadline) {
  for (;;) {
    const HealthReport report = Report();
    if (report.ready) return Status::Ok();
    MutexLock lock(mu_);
    const uint64_t before = checks_;
    while (checks_ == before) {
      if (!changed_.WaitUntil(mu_, deadline.at())) {
        return Status(Code::kDeadlineExceeded,
                      report.reasons.empty() ? "not ready" : report.reasons.front().detail);
      }
    }
  }
}

void HealthMonitor::SetEnding() {
  MutexLock lock(mu_);
  ending_ = true;
  changed_.SignalAll();
}

}  // namespace penstock
