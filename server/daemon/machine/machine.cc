#include "server/daemon/machine/machine.h"

#include <linux/capability.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

#include "common/base/units.h"
#include "fmt/format.h"

namespace penstock {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return in ? text.str() : std::string();
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The value, in bytes, of a line "Name:   123 kB".
std::optional<uint64_t> KilobyteLine(std::string_view text, std::string_view name) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (!std::string_view(line).starts_with(name)) continue;
    std::istringstream words(line.substr(name.size()));
    uint64_t kilobytes = 0;
    if (words >> kilobytes) return kilobytes * 1024;
  }
  return std::nullopt;
}

struct CgroupPaths {
  std::string v1_memory, v1_cpu;  // Path inside the hierarchy; empty: the hierarchy is not there.
  std::string v2;
};

// Lines of /proc/self/cgroup are "id:controllers:path"; version 2 has id 0 and no controllers.
CgroupPaths ReadCgroupPaths(const std::string& root) {
  CgroupPaths paths;
  std::istringstream lines(ReadFile(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") paths.v2 = path;
    if (controllers.find(",memory,") != controllers.npos) paths.v1_memory = path;
    if (controllers.find(",cpu,") != controllers.npos) paths.v1_cpu = path;
  }
  return paths;
}

// The directories from `base`/`path` up to `base`. Inside a container the path that the kernel
// tells may not exist below the mount; the mount itself is then the container's own group.
std::vector<std::string> UpToRoot(const std::string& base, std::string path) {
  std::vector<std::string> directories;
  while (!path.empty() && path != "/") {
    directories.push_back(base + path);
    path.resize(path.rfind('/') == path.npos ? 0 : path.rfind('/'));
  }
  directories.push_back(base);
  return directories;
}

// Keeps the tightest of the limits in `directories`.
void ReadMemoryGroup(const std::vector<std::string>& directories, const char* limit_name,
                     const char* used_name, Machine& machine) {
  // Version 1 writes "no limit" as the largest multiple of a page.
  constexpr uint64_t kAbsurd = uint64_t{1} << 60;
  for (const std::string& directory : directories) {
    const std::string file = directory + "/" + limit_name;
    const std::optional<uint64_t> limit = ParseNumber(ReadFile(file));  // "max" is no number.
    if (!limit || *limit >= kAbsurd || *limit >= machine.cgroup_limit) continue;
    machine.cgroup_limit = *limit;
    machine.cgroup_used = ParseNumber(ReadFile(directory + "/" + used_name)).value_or(0);
    machine.cgroup_source = file;
  }
}

// Cores that a CPU quota leaves, rounded up; a large number when there is no quota.
double QuotaCores(const std::string& root, const CgroupPaths& paths) {
  double cores = 1e9;
  const auto note = [&cores](double quota, double period) {
    if (quota > 0 && period > 0) cores = std::min(cores, quota / period);
  };
  for (const std::string& directory : UpToRoot(root + "/sys/fs/cgroup/cpu", paths.v1_cpu)) {
    note(static_cast<double>(ParseNumber(ReadFile(directory + "/cpu.cfs_quota_us")).value_or(0)),
         static_cast<double>(ParseNumber(ReadFile(directory + "/cpu.cfs_period_us")).value_or(0)));
  }
  for (const std::string& directory : UpToRoot(root + "/sys/fs/cgroup", paths.v2)) {
    std::istringstream words(ReadFile(directory + "/cpu.max"));
    double quota = 0, period = 0;
    if (words >> quota >> period) note(quota, period);  // "max 100000" fails at the first word.
  }
  return cores;
}

uint32_t UsableCores(const std::string& root, const CgroupPaths& paths) {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  cores = std::min(cores, static_cast<int>(std::ceil(std::min(QuotaCores(root, paths), 1e6))));
  return static_cast<uint32_t>(std::max(cores, 1));
}

uint64_t SoftLimit(decltype(RLIMIT_AS) which) {
  rlimit limit{};
  if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  return limit.rlim_cur;
}

bool MayLockMemory(const std::string& root) {
  std::istringstream lines(ReadFile(root + "/proc/self/status"));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("CapEff:", 0) != 0) continue;
    std::istringstream words(line.substr(7));
    uint64_t mask = 0;
    words >> std::hex >> mask;
    return (mask >> CAP_IPC_LOCK & 1) != 0;
  }
  return false;
}

}  // namespace

Machine Machine::Probe(std::string_view root_view) {
  const std::string root(root_view);
  Machine machine;
  const std::string memory = ReadFile(root + "/proc/meminfo");
  machine.memory_total = KilobyteLine(memory, "MemTotal:").value_or(0);
  machine.memory_available =
      KilobyteLine(memory, "MemAvailable:").value_or(machine.memory_total / 2);

  const CgroupPaths paths = ReadCgroupPaths(root);
  if (!paths.v1_memory.empty()) {
    ReadMemoryGroup(UpToRoot(root + "/sys/fs/cgroup/memory", paths.v1_memory),
                    "memory.limit_in_bytes", "memory.usage_in_bytes", machine);
  }
  ReadMemoryGroup(UpToRoot(root + "/sys/fs/cgroup", paths.v2), "memory.max", "memory.current",
                  machine);

  machine.cores = UsableCores(root, paths);
  machine.address_space = SoftLimit(RLIMIT_AS);
  machine.address_space_used =
      KilobyteLine(ReadFile(root + "/proc/self/status"), "VmSize:").value_or(0);
  machine.memlock = SoftLimit(RLIMIT_MEMLOCK);
  machine.may_lock_beyond_limit = MayLockMemory(root);
  machine.descriptors = SoftLimit(RLIMIT_NOFILE);
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_max != RLIM_INFINITY) {
    machine.descriptors_hard = files.rlim_max;
  }
  return machine;
}

uint64_t Machine::MemoryUsable() const {
  uint64_t usable = memory_available;
  if (cgroup_limit != kNoLimit) {
    usable = std::min(usable, cgroup_limit - std::min(cgroup_limit, cgroup_used));
  }
  return usable;
}

std::string Machine::ToString() const {
  std::string text = fmt::format("{} of memory, {} available, {} core{}", HumanBytes(memory_total),
                                 HumanBytes(memory_available), cores, cores == 1 ? "" : "s");
  if (cgroup_limit != kNoLimit) {
    text += fmt::format(", control group limit {} of which {} is used ({})",
                        HumanBytes(cgroup_limit), HumanBytes(cgroup_used), cgroup_source);
  }
  if (address_space != kNoLimit) {
    text += fmt::format(", RLIMIT_AS {} of which {} is used", HumanBytes(address_space),
                        HumanBytes(address_space_used));
  }
  text += fmt::format(", RLIMIT_MEMLOCK {}{}", HumanBytes(memlock),
                      may_lock_beyond_limit ? " (not binding: CAP_IPC_LOCK)" : "");
  return text + (descriptors == kNoLimit ? std::string(", RLIMIT_NOFILE unlimited")
                                         : fmt::format(", RLIMIT_NOFILE {}", descriptors));
}

uint64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kNoLimit;
  if (limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return limit.rlim_cur == RLIM_INFINITY ? kNoLimit : limit.rlim_cur;
}

std::string HumanBytes(uint64_t bytes) {
  return bytes == kNoLimit ? std::string("unlimited") : RoughBytes(bytes);
}

}  // namespace penstock
