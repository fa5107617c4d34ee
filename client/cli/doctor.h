// What `penstock doctor` looks at, one line each.

#ifndef PENSTOCK_CLIENT_CLI_DOCTOR_H_
#define PENSTOCK_CLIENT_CLI_DOCTOR_H_

#include <string>
#include <vector>

#include "client/cli/context.h"

namespace penstock::cli {

struct Finding {
  enum class Level { kOk, kWarn, kFail };
  Level level = Level::kOk;
  std::string name;    // Stable word for scripts: "memlock", "wire.tcp", ...
  std::string detail;  // What was found.
  std::string advice;  // What to do about it; empty with kOk.
};

// This machine and its limits, without any daemon.
std::vector<Finding> ExamineMachine();

// The daemon at the context's addresses: whether it is reached, who it is, how it does, and, with
// `self_test`, whether a value stored over each wire comes back as it was.
std::vector<Finding> ExamineDaemon(const Context& context, bool self_test);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLIENT_CLI_DOCTOR_H_
