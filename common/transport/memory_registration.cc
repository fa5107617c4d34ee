#include "common/transport/memory_registration.h"

#include <fmt/format.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <string>

#include "common/base/mutex.h"

namespace penstock {
namespace {

// All registrations of the process. The same memory may be registered several times, and
// registrations may overlap.
class RegionTable {
 public:
  struct Region {
    uintptr_t begin;
    uintptr_t end;
    bool writable;
  };
  using Id = std::multimap<uintptr_t, Region>::iterator;

  Id Add(const Region& region) {
    MutexLock lock(mu_);
    longest_ = std::max(longest_, region.end - region.begin);
    return regions_.emplace(region.begin, region);
  }
  void Remove(Id id) {
    MutexLock lock(mu_);
    regions_.erase(id);
    if (regions_.empty()) longest_ = 0;
  }
  bool Covers(std::span<const iovec> pieces, bool writable) {
    MutexLock lock(mu_);
    for (const iovec& piece : pieces) {
      if (piece.iov_len > 0 && !CoversOne(piece, writable)) return false;
    }
    return true;
  }

 private:
  bool CoversOne(const iovec& piece, bool writable) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto begin = reinterpret_cast<uintptr_t>(piece.iov_base);
    uintptr_t end = 0;
    if (__builtin_add_overflow(begin, piece.iov_len, &end)) return false;
    // Those that begin at or before `begin`, nearest first; none further away than the longest is
    // long can reach it.
    for (auto it = regions_.upper_bound(begin); it != regions_.begin();) {
      const Region& region = (--it)->second;
      if (region.end >= end && (region.writable || !writable)) return true;
      if (begin - region.begin > longest_) return false;
    }
    return false;
  }

  Mutex mu_;
  std::multimap<uintptr_t, Region> regions_ ABSL_GUARDED_BY(mu_);
  uintptr_t longest_ ABSL_GUARDED_BY(mu_) = 0;
};

RegionTable& Regions() {
  static RegionTable* const table = new RegionTable;  // Outlives every static user.
  return *table;
}

class Registration final : public MemoryRegistration {
 public:
  Registration(MutableByteSpan memory, RegionTable::Id id) : memory_(memory), id_(id) {}
  ~Registration() override { Regions().Remove(id_); }

  MutableByteSpan memory() const override { return memory_; }

 private:
  const MutableByteSpan memory_;
  const RegionTable::Id id_;
};

Status NotUsable(uintptr_t at, const char* what) {
  return Status(Code::kBadBuffer, fmt::format("memory at 0x{:x} is {}", at, what));
}

}  // namespace

Status CheckMapped(const void* base, uint64_t size, bool writable) {
  uintptr_t at = reinterpret_cast<uintptr_t>(base);
  uintptr_t end = 0;
  if (__builtin_add_overflow(at, size, &end)) return NotUsable(at, "longer than the address space");
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (at < end && std::getline(maps, line)) {
    uintptr_t from = 0;
    uintptr_t to = 0;
    char access[5] = "";
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &from, &to, access) != 3) {
      continue;
    }
    if (to <= at) continue;
    if (from > at) break;
    if (access[0] != 'r') return NotUsable(at, "not readable");
    if (writable && access[1] != 'w') return NotUsable(at, "not writable");
    at = to;
  }
  return at >= end ? Status::Ok() : NotUsable(at, "not mapped");
}

Result<std::unique_ptr<MemoryRegistration>> MemoryRegistration::Create(
    MutableByteSpan memory, const RegistrationOptions& options) {
  if (memory.empty()) return Status(Code::kInvalidArgument, "no memory to register");
  PENSTOCK_RETURN_IF_ERROR(CheckMapped(memory.data(), memory.size(), options.writable));
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  const auto id = Regions().Add({begin, begin + memory.size(), options.writable});
  return std::unique_ptr<MemoryRegistration>(std::make_unique<Registration>(memory, id));
}

bool IsRegistered(std::span<const iovec> pieces, bool writable) {
  return Regions().Covers(pieces, writable);
}

}  // namespace penstock
