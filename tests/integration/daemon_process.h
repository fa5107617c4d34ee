// DaemonProcess: a real penstockd, started for one test on free ports, and gone with it.

#ifndef PENSTOCK_TESTS_INTEGRATION_DAEMON_PROCESS_H_
#define PENSTOCK_TESTS_INTEGRATION_DAEMON_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/deadline.h"
#include "common/base/status.h"
#include "common/transport/endpoint.h"
#include "tests/sanitizers/sanitizers.h"

namespace penstock {

// A directory of its own, removed at the end with all that is in it.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline constexpr int kNoOwnNetwork = 125;

// Any program, with its standard error (and output) in a file. Killed at the end.
class Process {
 public:
  struct Options {
    std::vector<std::string> command;  // The program's path first.
    std::string log_path;
    std::vector<std::pair<int, uint64_t>> limits;  // RLIMIT_..., value
    std::vector<std::string> environment;          // "NAME=value", besides the test's own.
    int error_fd = -1;                             // Standard error goes here instead. Not owned.
    // No interface but its own loopback. Where that is not permitted, it exits with kNoOwnNetwork.
    bool own_network = false;
  };
  static Result<std::unique_ptr<Process>> Start(const Options& options);
  ~Process();

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_; }
  void Signal(int signal) const;
  // The wait status, once it has ended. Empty when `patience` was over first.
  std::optional<int> WaitExit(Duration patience = std::chrono::seconds(30));
  // Until it has stopped (SIGSTOP). False when `patience` was over first or it has ended.
  bool WaitStopped(Duration patience = std::chrono::seconds(30));
  std::string Log() const;

 private:
  Process(pid_t pid, int pidfd, std::string log_path);
  const pid_t pid_;
  const int pidfd_;
  const std::string log_path_;
  std::optional<int> status_;
};

class DaemonProcess {
 public:
  struct Options {
    // Besides the ports, the ready file and an arena of 64 MiB, which later ones override.
    std::vector<std::string> args;
    std::vector<std::pair<int, uint64_t>> limits;
    std::string listen = "tcp://127.0.0.1:0";
    Duration patience = std::chrono::seconds(60);
    int error_fd = -1;
  };
  // Waits until it serves. Errors: what it wrote, when it ended instead.
  static Result<std::unique_ptr<DaemonProcess>> Start(const Options& options);
  static Result<std::unique_ptr<DaemonProcess>> Start() { return Start(Options{}); }

  Process& process() { return *process_; }
  pid_t pid() const { return process_->pid(); }
  const std::vector<Address>& addresses() const { return addresses_; }
  const Address& address() const { return addresses_.front(); }
  const std::string& incarnation() const { return incarnation_; }
  const std::string& admin() const { return admin_; }
  const std::string& metrics() const { return metrics_; }
  std::string ready_path() const { return directory_.path() + "/ready.json"; }

  // What /metrics says, by name and labels as they stand there.
  std::map<std::string, double> Scrape() const;

 private:
  DaemonProcess() = default;
  Status ReadReadyFile();
  TempDir directory_;
  std::unique_ptr<Process> process_;
  std::vector<Address> addresses_;
  std::string incarnation_, admin_, metrics_;
};

// Where a daemon has to listen for clients that are to get `wire`: the local one needs a Unix
// socket, made in `directory`.
std::string ListenFor(const std::string& wire, const std::string& directory);

// The path of the penstockd under test.
std::string PenstockdPath();

// Waits for `path` to appear, or for the process to end. False when neither came in time.
bool WaitForFile(const std::string& path, const Process& process, Duration patience);

// The same for `text` in the file.
bool WaitForText(const std::string& path, const std::string& text, const Process& process,
                 Duration patience);

// From /proc.
uint64_t ResidentBytes(pid_t pid);
size_t DescriptorCount(pid_t pid);
size_t ThreadCount(pid_t pid);

// The body of http://HOST:PORT/PATH.
Result<std::string> HttpGet(const std::string& host_port, const std::string& path);
// The samples of a page in Prometheus' text form.
std::map<std::string, double> ParseMetrics(const std::string& page);

}  // namespace penstock

#endif  // PENSTOCK_TESTS_INTEGRATION_DAEMON_PROCESS_H_
