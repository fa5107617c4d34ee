// The half of `penstock doctor` that needs no daemon.

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <fstream>
#include <sstream>

#include "client/cli/doctor.h"
#include "common/base/units.h"
#include "common/format/checksum.h"
#include "common/transport/endpoint.h"

namespace penstock::cli {
namespace {

using Level = Finding::Level;

// Registered memory is locked: less than this and RDMA wires cannot work.
constexpr rlim_t kMemlockWanted = 64u << 20;
// A client uses a handful; a daemon some for every session.
constexpr rlim_t kFilesWanted = 4096;
// What UCX's shared-memory transports may need.
constexpr uint64_t kShmWanted = 256u << 20;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Finding Memlock() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return {Level::kOk, "memlock", "unlimited", ""};
  const std::string now = RoughBytes(limit.rlim_cur);
  if (limit.rlim_cur >= kMemlockWanted) return {Level::kOk, "memlock", now, ""};
  return {Level::kWarn, "memlock", fmt::format("{}: too little to register memory for RDMA", now),
          "raise it: ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, or the IPC_LOCK "
          "capability in a container. The tcp wire does not need it"};
}

Finding OpenFiles() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::string now = fmt::format("{} (at most {})", limit.rlim_cur, limit.rlim_max);
  if (limit.rlim_cur >= kFilesWanted) return {Level::kOk, "nofile", now, ""};
  return {Level::kWarn, "nofile", now,
          fmt::format("raise it where a daemon serves many clients: ulimit -n {}, or LimitNOFILE= "
                      "in its systemd unit",
                      kFilesWanted)};
}

Finding HugePages() {
  const std::string modes = FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");
  std::ifstream meminfo("/proc/meminfo");
  uint64_t reserved = 0;
  for (std::string line; std::getline(meminfo, line);) {
    if (std::sscanf(line.c_str(), "HugePages_Total: %lu", &reserved) == 1) break;
  }
  const std::string detail =
      fmt::format("transparent: {}; reserved: {}", modes.empty() ? "unknown" : modes, reserved);
  if (reserved > 0 || modes.find("[never]") == std::string::npos) {
    return {Level::kOk, "hugepages", detail, ""};
  }
  return {Level::kWarn, "hugepages", detail,
          "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: the daemon's arena then "
          "takes fewer address translations"};
}

Finding SharedMemory() {
  struct statvfs fs {};
  if (statvfs("/dev/shm", &fs) != 0) {
    return {Level::kWarn, "shm", "/dev/shm is not there",
            "mount a tmpfs at /dev/shm: UCX needs it for its shared-memory transports"};
  }
  const uint64_t total = uint64_t{fs.f_blocks} * fs.f_frsize;
  const uint64_t free = uint64_t{fs.f_bavail} * fs.f_frsize;
  const std::string detail = fmt::format("{} free of {}", RoughBytes(free), RoughBytes(total));
  if (free >= kShmWanted) return {Level::kOk, "shm", detail, ""};
  return {Level::kWarn, "shm", detail,
          "make /dev/shm larger (docker run --shm-size=1g, an emptyDir of medium Memory in "
          "Kubernetes), or use the tcp wire"};
}

Finding Memory() {
  std::ifstream meminfo("/proc/meminfo");
  uint64_t kib = 0;
  for (std::string line; std::getline(meminfo, line);) {
    if (std::sscanf(line.c_str(), "MemAvailable: %lu kB", &kib) == 1) break;
  }
  const std::string limit = FirstLine("/sys/fs/cgroup/memory.max");
  const bool limited = !limit.empty() && limit != "max";
  return {Level::kOk, "memory",
          fmt::format("{} available{}", RoughBytes(kib << 10),
                      limited ? ", this cgroup may use " + RoughBytes(std::stoull(limit)) : ""),
          ""};
}

}  // namespace

std::vector<Finding> ExamineMachine() {
  std::vector<Finding> findings;
  findings.push_back({Level::kOk, "version", "penstock " PENSTOCK_VERSION, ""});
  findings.push_back(
      {Level::kOk, "checksum", fmt::format("{} instructions", ChecksumKernelName()), ""});
  findings.push_back(Memory());
  findings.push_back(Memlock());
  findings.push_back(OpenFiles());
  findings.push_back(HugePages());
  findings.push_back(SharedMemory());
  for (const WireReport& wire : DescribeWires()) {
    findings.push_back({wire.usable ? Level::kOk : Level::kWarn, "transport." + wire.wire,
                        wire.detail,
                        wire.usable ? "" : "only the other wires can be used on this machine"});
  }
  return findings;
}

}  // namespace penstock::cli
