// DaemonFacts: what a daemon tells of itself.

#ifndef PENSTOCK_SERVER_DAEMON_ADMIN_DAEMON_FACTS_H_
#define PENSTOCK_SERVER_DAEMON_ADMIN_DAEMON_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/deadline.h"
#include "common/keys/chunk_key.h"

namespace penstock {

// Fixed once the daemon has started.
struct DaemonFacts {
  struct ConfigValue {
    std::string name, value, source;
  };
  std::string version;
  uint64_t incarnation = 0;
  MonotonicTime started;
  std::vector<std::string> addresses;
  std::string admin_address;
  std::string metrics_address;
  std::vector<std::string> wires;
  uint32_t data_threads = 0;
  std::string arena_reason;
  std::vector<std::string> start_up;
  std::vector<ConfigValue> config;
  Fingerprint internal_ns;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_ADMIN_DAEMON_FACTS_H_
