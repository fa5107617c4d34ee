// A real process that a test may kill or freeze.

#ifndef PENSTOCK_TESTS_INTEGRATION_CHILD_PROCESS_H_
#define PENSTOCK_TESTS_INTEGRATION_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace penstock {

class ChildProcess {
 public:
  // Starts argv[0]. Aborts the test program when that fails.
  explicit ChildProcess(const std::vector<std::string>& argv);
  // Kills it if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Its next line of output, without the end of line; empty when there will be none.
  std::string ReadLine();
  void Signal(int signal);
  // Closes its input, which tells well-behaved children to end, and returns its exit status
  // (128 + n for signal n).
  int Finish();
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
};

}  // namespace penstock

#endif  // PENSTOCK_TESTS_INTEGRATION_CHILD_PROCESS_H_
