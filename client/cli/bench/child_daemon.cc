#include "client/cli/bench/child_daemon.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

namespace penstock::cli {
namespace {

// Beside this program (installed), or where a build puts it.
std::string FindDaemon() {
  std::error_code ignored;
  const std::filesystem::path here =
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* place : {"penstockd", "../../server/daemon/penstockd"}) {
    const std::filesystem::path path = here / place;
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return "penstockd";
}

}  // namespace

Result<std::unique_ptr<ChildDaemon>> ChildDaemon::Start(const Options& options) {
  Options complete = options;
  if (complete.binary.empty()) complete.binary = FindDaemon();
  std::string directory = std::filesystem::temp_directory_path() / "penstock-bench-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    return Status(Code::kResourceExhausted,
                  fmt::format("cannot make {}: {}", directory, std::strerror(errno)));
  }
  std::unique_ptr<ChildDaemon> daemon(new ChildDaemon(std::move(complete), std::move(directory)));
  PENSTOCK_RETURN_IF_ERROR(daemon->Spawn());
  return daemon;
}

ChildDaemon::~ChildDaemon() {
  Kill();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

Status ChildDaemon::Spawn() {
  std::vector<std::string> words = {options_.binary, "--listen=" + address(),
                                    "--admin.address=127.0.0.1:0", "--metrics.address=none",
                                    "--arena.size=" + options_.arena};
  words.insert(words.end(), options_.more.begin(), options_.more.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    posix_spawn_file_actions_addopen(&actions, fd, log_path().c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0644);
  }
  // No environment: settings of the caller's own daemon are not meant for this one.
  char* const environment[] = {nullptr};
  const int error = posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environment);
  posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return Status::Ok();
  pid_ = -1;
  return Status(Code::kInvalidArgument,
                fmt::format("cannot start {}: {}", options_.binary, std::strerror(error)));
}

void ChildDaemon::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

Status ChildDaemon::KillAndRestart() {
  Kill();
  return Spawn();
}

}  // namespace penstock::cli
