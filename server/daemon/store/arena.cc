#include "server/daemon/store/arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

#include "server/daemon/machine/machine.h"

#ifndef MADV_POPULATE_WRITE  // Linux 5.14; older headers lack it.
#define MADV_POPULATE_WRITE 23
#endif
#ifndef F_SEAL_FUTURE_WRITE  // Linux 5.1.
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace penstock {
namespace {

std::string Amount(uint64_t bytes) {
  return fmt::format("{} bytes ({})", bytes, HumanBytes(bytes));
}

Status Refused(const char* what, uint64_t wanted, const std::string& limit, uint64_t allowed,
               const char* hint) {
  return Status(Code::kResourceExhausted,
                fmt::format("arena: {}: wanted {}, {} allows {}; {}", what, Amount(wanted), limit,
                            Amount(allowed), hint));
}

Status SystemRefused(const char* what, uint64_t wanted, int error) {
  return Status(Code::kResourceExhausted,
                fmt::format("arena: {} of {}: {}", what, Amount(wanted), std::strerror(error)));
}

// A field of /proc/meminfo, in its own unit; 0 if it is not there.
uint64_t MemInfo(const std::string& field) {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(field + ":", 0) != 0) continue;
    std::stringstream rest(line.substr(field.size() + 1));
    uint64_t value = 0;
    return rest >> value ? value : 0;
  }
  return 0;
}

uint64_t HugePagesFree(uint64_t page_bytes) {
  const uint64_t free = MemInfo("HugePages_Free");
  const uint64_t promised = MemInfo("HugePages_Rsvd");
  return (free > promised ? free - promised : 0) * page_bytes;
}

// Limits that the kernel enforces late and rudely (a signal or the out-of-memory killer) are
// checked before the first page is touched.
Status CheckRoomFor(uint64_t bytes) {
  const Machine machine = Machine::Probe();
  if (machine.cgroup_limit != kNoLimit) {
    const uint64_t room =
        machine.cgroup_limit - std::min(machine.cgroup_used, machine.cgroup_limit);
    if (room < bytes) {
      return Refused("prefault", bytes, "the control group (" + machine.cgroup_source + ")", room,
                     "make the arena smaller or raise the limit");
    }
  }
  if (machine.memory_available < bytes) {
    return Refused("prefault", bytes, "the memory available on this machine (MemAvailable)",
                   machine.memory_available, "make the arena smaller");
  }
  return Status::Ok();
}

// Makes every page exist, by the kernel where it can, by hand otherwise.
int TouchAllPages(std::byte* base, uint64_t size, uint64_t page_bytes) {
  constexpr uint64_t kStep = 1ull << 30;  // So that an interrupted call loses little.
  for (uint64_t at = 0; at < size;) {
    const uint64_t length = std::min(kStep, size - at);
    if (madvise(base + at, length, MADV_POPULATE_WRITE) == 0) {
      at += length;
    } else if (errno == EINTR) {
      continue;
    } else if (errno == EINVAL) {
      break;  // Linux before 5.14.
    } else {
      return errno;
    }
    if (at == size) return 0;
  }
  for (uint64_t at = 0; at < size; at += page_bytes) {
    *reinterpret_cast<volatile std::byte*>(base + at) = std::byte{0};
  }
  return 0;
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::Create(const ArenaOptions& options) {
  std::unique_ptr<Arena> arena(new Arena);
  arena->page_bytes_ = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (options.pages == PageKind::kHugeTlb) {
    arena->page_bytes_ = MemInfo("Hugepagesize") * 1024;
    if (arena->page_bytes_ == 0) {
      return Status(Code::kResourceExhausted, "arena: this kernel has no huge pages");
    }
  }
  const uint64_t page = arena->page_bytes_;
  if (options.bytes == 0 || options.bytes > std::numeric_limits<int64_t>::max() - page) {
    return Status(Code::kInvalidArgument,
                  fmt::format("arena: a size of {} bytes makes no sense", options.bytes));
  }
  arena->size_ = (options.bytes + page - 1) / page * page;
  PENSTOCK_RETURN_IF_ERROR(arena->OpenFile(options));
  PENSTOCK_RETURN_IF_ERROR(arena->Map(options));
  PENSTOCK_RETURN_IF_ERROR(arena->Populate(options));
  return arena;
}

Status Arena::OpenFile(const ArenaOptions& options) {
  const bool huge = options.pages == PageKind::kHugeTlb;
  // Checked first: growing a file beyond this limit raises a signal.
  struct rlimit file_size;
  if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur < size_) {
    return Refused("size", size_, "RLIMIT_FSIZE (ulimit -f)", file_size.rlim_cur,
                   "raise the limit");
  }
  if (huge && HugePagesFree(page_bytes_) < size_) {
    return Refused("huge pages", size_, "the pool of free huge pages (vm.nr_hugepages)",
                   HugePagesFree(page_bytes_), "raise vm.nr_hugepages or use ordinary pages");
  }
  fd_ = memfd_create("penstock-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB : 0));
  if (fd_ < 0) {
    const int error = errno;
    if (error == EMFILE) {
      return Status(Code::kResourceExhausted,
                    fmt::format("arena: no descriptor left: wanted 1 more, RLIMIT_NOFILE "
                                "(ulimit -n) allows {} in all",
                                Machine::Probe().descriptors));
    }
    return SystemRefused("memfd_create", size_, error);
  }
  if (ftruncate(fd_, static_cast<off_t>(size_)) != 0) {
    return SystemRefused("ftruncate", size_, errno);
  }
  return Status::Ok();
}

Status Arena::Map(const ArenaOptions& options) {
  void* base = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    const Machine machine = Machine::Probe();
    if (error == ENOMEM && machine.address_space != kNoLimit) {
      return Refused("address space", size_, "RLIMIT_AS (ulimit -v)", machine.address_space,
                     "the whole process must fit: raise the limit or make the arena smaller");
    }
    return SystemRefused("mmap", size_, error);
  }
  base_ = static_cast<std::byte*>(base);
  // The rest is advice: without it the arena works all the same.
  if (options.pages == PageKind::kTransparentHuge) (void)madvise(base_, size_, MADV_HUGEPAGE);
  (void)madvise(base_, size_, MADV_DONTDUMP);
  sealed_ = fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == 0;
  if (!sealed_) (void)fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);  // Before Linux 5.1.
  return Status::Ok();
}

Status Arena::Populate(const ArenaOptions& options) {
  if (!options.prefault && !options.lock) return Status::Ok();
  if (options.pages != PageKind::kHugeTlb) PENSTOCK_RETURN_IF_ERROR(CheckRoomFor(size_));
  if (options.lock) {
    if (mlock(base_, size_) != 0) {
      const int error = errno;
      const uint64_t limit = Machine::Probe().memlock;
      if (limit < size_) {
        return Refused("mlock", size_, "RLIMIT_MEMLOCK (ulimit -l)", limit,
                       "raise the limit (LimitMEMLOCK=infinity in a systemd unit)");
      }
      return SystemRefused("mlock", size_, error);
    }
    locked_ = true;
  }
  if (const int error = TouchAllPages(base_, size_, page_bytes_); error != 0) {
    return SystemRefused("prefault", size_, error);
  }
  return Status::Ok();
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, size_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace penstock
