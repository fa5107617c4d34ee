// Machine: what the operating system lets this process have. Read once at start.
//
// A limit that cannot be read counts as absent; whoever then asks for too much gets the operating
// system's own refusal, with both amounts in the text.

#ifndef PENSTOCK_SERVER_DAEMON_MACHINE_MACHINE_H_
#define PENSTOCK_SERVER_DAEMON_MACHINE_MACHINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace penstock {

// A limit that is not there.
inline constexpr uint64_t kNoLimit = UINT64_MAX;

struct Machine {
  uint64_t memory_total = 0;      // Of the host.
  uint64_t memory_available = 0;  // What the host could hand out now without swapping.

  // Control group, version 1 or 2: the tightest limit on the way to the root, and what is used
  // under it. kNoLimit when there is none.
  uint64_t cgroup_limit = kNoLimit;
  uint64_t cgroup_used = 0;
  std::string cgroup_source;  // File that holds the limit; empty when there is none.

  uint64_t address_space = kNoLimit;     // RLIMIT_AS
  uint64_t address_space_used = 0;       // Already mapped by this process.
  uint64_t memlock = kNoLimit;           // RLIMIT_MEMLOCK, soft
  uint64_t descriptors = kNoLimit;       // RLIMIT_NOFILE, soft
  uint64_t descriptors_hard = kNoLimit;  // RLIMIT_NOFILE, hard
  bool may_lock_beyond_limit = false;    // CAP_IPC_LOCK: memlock does not bind.
  uint32_t cores = 1;                    // Affinity, and the control group's CPU quota.

  // Memory that this process could take now: the least of what the host has available and what the
  // control group leaves.
  uint64_t MemoryUsable() const;
  // "23.5 GiB of memory, 22.1 GiB available, ..."
  std::string ToString() const;

  // Reads the limits of this process. `root` replaces "/" for /proc and /sys, so that a test can
  // lay out another machine; the process's own rlimits and affinity are always real.
  static Machine Probe(std::string_view root = "");
};

// Raises the soft limit on descriptors to the hard one. Returns the soft limit afterwards.
uint64_t RaiseDescriptorLimit();

// RoughBytes(), and "unlimited" for kNoLimit.
std::string HumanBytes(uint64_t bytes);

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_MACHINE_MACHINE_H_
