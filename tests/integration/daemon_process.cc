#include "tests/integration/daemon_process.h"

#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "common/config/environment.h"
#include "common/transport/socket.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace penstock {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

size_t CountEntries(const std::string& directory) {
  std::error_code error;
  size_t count = 0;
  for (auto it = std::filesystem::directory_iterator(directory, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    ++count;
  }
  return count;
}

bool EnterOwnNetwork() {
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  request.ifr_name[0] = 'l';
  request.ifr_name[1] = 'o';
  request.ifr_flags = IFF_UP;
  const bool up = ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  close(fd);
  return up;
}

// In the child, between fork and exec: only what is safe there.
[[noreturn]] void RunChild(const Process::Options& options, char* const* argv, char* const* envp,
                           int log, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);
  if (options.own_network && !EnterOwnNetwork()) _exit(kNoOwnNetwork);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const auto& [which, value] : options.limits) {
    const rlimit limit{value, value};
    if (setrlimit(static_cast<__rlimit_resource_t>(which), &limit) != 0) _exit(124);
  }
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, 0);
  dup2(log, 1);
  dup2(options.error_fd >= 0 ? options.error_fd : log, 2);
  execve(argv[0], argv, envp);
  _exit(127);
}

}  // namespace

TempDir::TempDir() {
  std::string name = std::filesystem::temp_directory_path() / "penstock-test-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) std::abort();
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Process::Process(pid_t pid, int pidfd, std::string log_path)
    : pid_(pid), pidfd_(pidfd), log_path_(std::move(log_path)) {}

Result<std::unique_ptr<Process>> Process::Start(const Options& options) {
  std::vector<std::string> command = options.command;
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<std::string> environment = options.environment;
  for (const auto& [name, value] : EnvironmentWithPrefix("")) {
    // Settings of whoever runs the tests must not change what is tested.
    if (!name.starts_with("PENSTOCK_")) environment.push_back(name + "=" + value);
  }
  std::vector<char*> envp;
  for (std::string& entry : environment) envp.push_back(entry.data());
  envp.push_back(nullptr);
  const UniqueFd log(
      open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log.valid()) return Status(Code::kIoError, options.log_path + ": " + ErrnoText(errno));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Status(Code::kResourceExhausted, "fork: " + ErrnoText(errno));
  if (pid == 0) RunChild(options, argv.data(), envp.data(), log.get(), parent);
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  return std::unique_ptr<Process>(new Process(pid, pidfd, options.log_path));
}

Process::~Process() {
  if (!status_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(pidfd_);
}

void Process::Signal(int signal) const {
  if (!status_) kill(pid_, signal);
}

std::optional<int> Process::WaitExit(Duration patience) {
  if (status_) return status_;
  const Deadline deadline = Deadline::After(patience);
  pollfd ended{pidfd_, POLLIN, 0};
  int ready = 0;
  do {
    ready = poll(&ended, 1, static_cast<int>(deadline.LeftMillis()));
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) return std::nullopt;
  int status = 0;
  if (waitpid(pid_, &status, 0) == pid_) status_ = status;
  return status_;
}

bool Process::WaitStopped(Duration patience) {
  // A stop is told by waitid() alone, which cannot be given a time: ask now and then.
  const Deadline deadline = Deadline::After(patience);
  pollfd ended{pidfd_, POLLIN, 0};
  while (!deadline.Expired()) {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == pid_) {
      waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG);
      return true;
    }
    if (poll(&ended, 1, 5) > 0) return false;
  }
  return false;
}

std::string Process::Log() const { return ReadAll(log_path_); }

std::string ListenFor(const std::string& wire, const std::string& directory) {
  return wire == "local" ? "unix://" + directory + "/socket" : "tcp://127.0.0.1:0";
}

std::string PenstockdPath() { return PENSTOCKD_PATH; }

bool WaitForFile(const std::string& path, const Process& process, Duration patience) {
  const Deadline deadline = Deadline::After(patience);
  const UniqueFd watch(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  const std::string directory = std::filesystem::path(path).parent_path();
  inotify_add_watch(watch.get(), directory.c_str(), IN_CREATE | IN_MOVED_TO);
  while (access(path.c_str(), F_OK) != 0) {
    pollfd fds[2] = {{watch.get(), POLLIN, 0}, {process.pidfd(), POLLIN, 0}};
    const int ready = poll(fds, 2, static_cast<int>(deadline.LeftMillis()));
    if (ready == 0 || (fds[1].revents & POLLIN) != 0) return access(path.c_str(), F_OK) == 0;
    char events[4096];
    while (read(watch.get(), events, sizeof(events)) > 0) {
    }
  }
  return true;
}

bool WaitForText(const std::string& path, const std::string& text, const Process& process,
                 Duration patience) {
  const Deadline deadline = Deadline::After(patience);
  const UniqueFd watch(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  inotify_add_watch(watch.get(), path.c_str(), IN_MODIFY);
  while (ReadAll(path).find(text) == std::string::npos) {
    pollfd fds[2] = {{watch.get(), POLLIN, 0}, {process.pidfd(), POLLIN, 0}};
    const int ready = poll(fds, 2, static_cast<int>(deadline.LeftMillis()));
    if (ready == 0 || (fds[1].revents & POLLIN) != 0) {
      return ReadAll(path).find(text) != std::string::npos;
    }
    char events[4096];
    while (read(watch.get(), events, sizeof(events)) > 0) {
    }
  }
  return true;
}

Result<std::unique_ptr<DaemonProcess>> DaemonProcess::Start(const Options& options) {
  std::unique_ptr<DaemonProcess> daemon(new DaemonProcess);
  Process::Options process;
  process.command = {PenstockdPath(),
                     "--listen=" + options.listen,
                     "--admin.address=127.0.0.1:0",
                     "--metrics.address=127.0.0.1:0",
                     "--ready_file=" + daemon->ready_path(),
                     "--arena.size=64MiB"};
  for (const std::string& arg : options.args) {
    // A flag may be given only once: the test's own wins.
    const std::string name = arg.substr(0, arg.find('=') + 1);
    std::erase_if(process.command, [&](const auto& other) { return other.starts_with(name); });
    process.command.push_back(arg);
  }
  process.limits = options.limits;
  process.log_path = daemon->directory_.path() + "/log";
  process.error_fd = options.error_fd;
  PENSTOCK_ASSIGN_OR_RETURN(daemon->process_, Process::Start(process));
  if (!WaitForFile(daemon->ready_path(), *daemon->process_, options.patience)) {
    return Status(Code::kDisconnected, "penstockd does not serve: " + daemon->process_->Log());
  }
  PENSTOCK_RETURN_IF_ERROR(daemon->ReadReadyFile());
  return daemon;
}

Status DaemonProcess::ReadReadyFile() {
  const auto json = nlohmann::json::parse(ReadAll(ready_path()), nullptr, false);
  if (json.is_discarded()) return Status(Code::kCorruptMessage, "the ready file is no JSON");
  for (const auto& text : json["addresses"]) {
    PENSTOCK_ASSIGN_OR_RETURN(Address address, Address::Parse(text.get<std::string>()));
    addresses_.push_back(std::move(address));
  }
  incarnation_ = json["incarnation"];
  admin_ = json["admin"];
  metrics_ = json["metrics"];
  return addresses_.empty() ? Status(Code::kInternal, "no address") : Status::Ok();
}

std::map<std::string, double> DaemonProcess::Scrape() const {
  const auto page = HttpGet(metrics_, "/metrics");
  return page.ok() ? ParseMetrics(*page) : std::map<std::string, double>{};
}

std::map<std::string, double> ParseMetrics(const std::string& page) {
  std::map<std::string, double> samples;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.rfind(' ');
    if (line.empty() || line[0] == '#' || space == line.npos) continue;
    samples[line.substr(0, space)] = std::strtod(line.c_str() + space, nullptr);
  }
  return samples;
}

uint64_t ResidentBytes(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/statm", pid));
  uint64_t size = 0, resident = 0;
  in >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

size_t DescriptorCount(pid_t pid) { return CountEntries(fmt::format("/proc/{}/fd", pid)); }
size_t ThreadCount(pid_t pid) { return CountEntries(fmt::format("/proc/{}/task", pid)); }

Result<std::string> HttpGet(const std::string& host_port, const std::string& path) {
  PENSTOCK_ASSIGN_OR_RETURN(const Address address, Address::Parse(host_port));
  PENSTOCK_ASSIGN_OR_RETURN(const auto resolved, Resolve(address, /*passive=*/false));
  const UniqueFd fd(socket(resolved[0].family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{10, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  if (connect(fd.get(), resolved[0].get(), resolved[0].length) != 0) {
    return Status(Code::kDisconnected, host_port + ": " + ErrnoText(errno));
  }
  const std::string request =
      fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", path, host_port);
  if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) {
    return Status(Code::kDisconnected, ErrnoText(errno));
  }
  std::string answer;
  char buffer[16384];
  for (ssize_t got; (got = recv(fd.get(), buffer, sizeof(buffer), 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(got));
  }
  const size_t end = answer.find("\r\n\r\n");
  if (end == answer.npos) return Status(Code::kDisconnected, "no whole HTTP answer");
  return answer.substr(end + 4);
}

}  // namespace penstock
