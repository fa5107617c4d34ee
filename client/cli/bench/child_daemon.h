// A penstockd of the bench's own: started on a Unix socket, killed without warning, started again.

#ifndef PENSTOCK_CLIENT_CLI_BENCH_CHILD_DAEMON_H_
#define PENSTOCK_CLIENT_CLI_BENCH_CHILD_DAEMON_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace penstock::cli {

class ChildDaemon {
 public:
  struct Options {
    std::string binary;  // Empty: beside this program, in its build tree, or in $PATH.
    std::string arena = "256MiB";
    std::vector<std::string> more;  // Further arguments.
  };

  // Errors: kInvalidArgument (no such program), kResourceExhausted.
  static Result<std::unique_ptr<ChildDaemon>> Start(const Options& options);
  // Kills it and removes its directory.
  ~ChildDaemon();

  std::string address() const { return "unix://" + directory_ + "/socket"; }
  std::string log_path() const { return directory_ + "/log"; }
  pid_t pid() const { return pid_; }
  // kill -9, then a new process at the same address.
  Status KillAndRestart();

 private:
  ChildDaemon(Options options, std::string directory)
      : options_(std::move(options)), directory_(std::move(directory)) {}
  Status Spawn();
  void Kill();

  const Options options_;
  const std::string directory_;
  pid_t pid_ = -1;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLIENT_CLI_BENCH_CHILD_DAEMON_H_
