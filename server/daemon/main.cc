// penstockd: the process around one Daemon.
//
// Exit status: 0 after an orderly end, 1 when it could not start, 2 for a wrong setting, 3 when it
// could not end in order. A second signal ends it at once, as the shell sees it (128 + signal).

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "common/log/log.h"
#include "common/transport/socket.h"
#include "fmt/format.h"
#include "server/daemon/daemon.h"
#include "server/daemon/machine/machine.h"
#include "server/daemon/ready_file.h"
#include "server/daemon/settings.h"

namespace penstock {
namespace {

constexpr int kExitStart = 1, kExitUsage = 2, kExitStuck = 3;
// Beyond the grace period, for what should take no time: closing sockets, joining threads.
constexpr std::chrono::seconds kStopMargin{10};

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  return set;
}

int FailToStart(const Status& status) {
  std::fprintf(stderr, "penstockd: cannot start: %s\n", status.message().c_str());
  const std::string_view advice = CodeAdvice(status.code());
  PENSTOCK_LOG_ONCE_AT_START_OR_STOP(kError, "cannot start", {"status", status},
                                     {"advice", advice});
  return kExitStart;
}

// The number of a signal that came within `patience`; 0 for none; -1 when `other` became readable.
int WaitForSignal(int signals, int other, Duration patience) {
  const Deadline deadline = Deadline::After(patience);
  for (;;) {
    pollfd fds[2] = {{signals, POLLIN, 0}, {other, POLLIN, 0}};
    const int ready = poll(fds, other < 0 ? 1 : 2, static_cast<int>(deadline.LeftMillis()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return 0;
    if ((fds[0].revents & POLLIN) == 0) return -1;
    signalfd_siginfo info{};
    if (read(signals, &info, sizeof(info)) == sizeof(info)) return static_cast<int>(info.ssi_signo);
  }
}

// Stops the daemon, but ends the process at once at a second signal, or when stopping is stuck.
void StopInOrder(Daemon& daemon, int signals, Duration grace) {
  const UniqueFd done(eventfd(0, EFD_CLOEXEC));
  bool drained = false;
  std::thread stopper([&] {
    drained = daemon.Stop(grace);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(done.get(), &one, sizeof(one));
  });
  const int signal = WaitForSignal(signals, done.get(), grace + kStopMargin);
  if (signal >= 0) {
    PENSTOCK_LOG_ONCE_AT_START_OR_STOP(
        kError, "ending without order",
        {"because", signal == 0 ? "stopping is stuck" : "of a second signal"});
    FlushLog(std::chrono::seconds(1));
    _exit(signal == 0 ? kExitStuck : 128 + signal);
  }
  stopper.join();
  PENSTOCK_LOG_ONCE_AT_START_OR_STOP(kInfo, "stopped", {"all_finished", drained});
}

void LogStart(const Daemon& daemon, const OptionTable& table) {
  for (const std::string& line : daemon.facts().start_up) {
    PENSTOCK_LOG_ONCE_AT_START_OR_STOP(kInfo, "chosen", {"what", line});
  }
  for (const OptionTable::Effective& option : table.EffectiveOptions()) {
    if (option.source == "default") continue;
    PENSTOCK_LOG_ONCE_AT_START_OR_STOP(kInfo, "setting", {"name", option.name},
                                       {"value", option.value}, {"source", option.source});
  }
  std::string addresses;
  for (const std::string& address : daemon.facts().addresses) {
    addresses += (addresses.empty() ? "" : " ") + address;
  }
  PENSTOCK_LOG_ONCE_AT_START_OR_STOP(
      kInfo, "serving", {"version", daemon.facts().version}, {"addresses", addresses},
      {"admin", daemon.facts().admin_address}, {"metrics", daemon.facts().metrics_address});
}

// Whether the operator left the option alone.
bool IsDefault(const OptionTable& table, std::string_view name) {
  for (const OptionTable::Effective& option : table.EffectiveOptions()) {
    if (option.name == name) return option.source == "default";
  }
  return true;
}

int Serve(const Settings& settings, const OptionTable& table) {
  // Before any thread exists, so that none of them ever gets one of these signals.
  const sigset_t stop_signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &stop_signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  const UniqueFd signals(signalfd(-1, &stop_signals, SFD_CLOEXEC));
  if (!signals.valid()) {
    return FailToStart(Status(Code::kResourceExhausted, "signalfd: " + ErrnoText(errno)));
  }
  RaiseDescriptorLimit();
  auto options = PlanDaemon(settings, Machine::Probe(), IsDefault(table, "listen"));
  if (!options.ok()) return FailToStart(options.status());
  for (const OptionTable::Effective& option : table.EffectiveOptions()) {
    options->config.push_back({option.name, option.value, option.source});
  }
  auto daemon = Daemon::Start(std::move(*options));
  if (!daemon.ok()) return FailToStart(daemon.status());
  LogStart(**daemon, table);
  FlushLog(std::chrono::seconds(1));  // Whoever waits for the ready file finds the log complete.
  if (!settings.ready_file.empty()) {
    const Status written = WriteReadyFile(settings.ready_file, (*daemon)->facts());
    if (!written.ok()) return FailToStart(written);
  }

  int signal = 0;
  while (signal == 0) signal = WaitForSignal(signals.get(), -1, Deadline::kMax);
  PENSTOCK_LOG_ONCE_AT_START_OR_STOP(kInfo, "stopping", {"signal", signal});
  StopInOrder(**daemon, signals.get(), settings.stop_grace);
  if (!settings.ready_file.empty()) RemoveReadyFile(settings.ready_file, (*daemon)->facts());
  ReportSuppressedAtExit();
  return 0;
}

int Main(int argc, char** argv) {
  Settings settings;
  OptionTable table = MakeOptionTable(settings);
  const auto outcome = table.Load(OptionTable::ProcessInputs(argc, argv));
  if (!outcome.ok()) {
    std::fprintf(stderr, "penstockd: %s\n", outcome.status().message().c_str());
    return kExitUsage;
  }
  if (*outcome == OptionTable::Outcome::kHelp) {
    std::fputs(table.Help().c_str(), stdout);
    return 0;
  }
  if (*outcome == OptionTable::Outcome::kVersion) {
    std::puts(DaemonVersion().c_str());
    return 0;
  }
  InitLogging({.level = settings.log_level, .format = settings.log_format});
  return Serve(settings, table);
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
