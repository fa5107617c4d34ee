#include "common/transport/memory_registration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"

namespace penstock {
namespace {

using Handles = std::vector<std::shared_ptr<void>>;

struct Region {
  MutableByteSpan memory;
  RegistrationOptions options;
  Handles handles;  // One for each piece and device.

  uintptr_t begin() const { return reinterpret_cast<uintptr_t>(memory.data()); }
  uintptr_t end() const { return begin() + memory.size(); }
};

Status MapPieces(const Region& region, RegistrationDevice& device, Handles& handles) {
  const size_t most = region.options.max_registration_bytes > 0
                          ? region.options.max_registration_bytes
                          : region.memory.size();
  for (MutableByteSpan rest = region.memory; !rest.empty();) {
    const MutableByteSpan piece = rest.first(std::min(most, rest.size()));
    PENSTOCK_ASSIGN_OR_RETURN(auto handle, device.Map(piece));
    handles.push_back(std::move(handle));
    rest = rest.subspan(piece.size());
  }
  return Status::Ok();
}

// All registrations of the process. The same memory may be registered several times, and
// registrations may overlap.
class RegionTable {
 public:
  using Id = std::multimap<uintptr_t, Region>::iterator;

  Result<Id> Add(Region region) {
    // Devices may take long: lookups must not wait for them.
    MutexLock changing(change_mu_);
    for (RegistrationDevice* const device : devices_) {
      PENSTOCK_RETURN_IF_ERROR(MapPieces(region, *device, region.handles));
    }
    MutexLock lock(mu_);
    longest_ = std::max(longest_, region.memory.size());
    return regions_.emplace(region.begin(), std::move(region));
  }

  void Remove(Id id) {
    Handles released;  // After the locks.
    MutexLock changing(change_mu_);
    MutexLock lock(mu_);
    released = std::move(id->second.handles);
    regions_.erase(id);
    if (regions_.empty()) longest_ = 0;
  }

  Status Attach(RegistrationDevice& device) {
    MutexLock changing(change_mu_);
    // Only Add() and Remove() change the map, and they wait for us.
    std::vector<std::pair<Region*, Handles>> mapped;
    {
      MutexLock lock(mu_);
      for (auto& [begin, region] : regions_) mapped.emplace_back(&region, Handles());
    }
    for (auto& [region, handles] : mapped) {
      PENSTOCK_RETURN_IF_ERROR(MapPieces(*region, device, handles));
    }
    for (auto& [region, handles] : mapped) {
      region->handles.insert(region->handles.end(), handles.begin(), handles.end());
    }
    devices_.push_back(&device);
    return Status::Ok();
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
      if (region.end() >= end && (region.options.writable || !writable)) return true;
      if (begin - region.begin() > longest_) return false;
    }
    return false;
  }

  // Held while the set of regions or devices changes.
  Mutex change_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  std::vector<RegistrationDevice*> devices_ ABSL_GUARDED_BY(change_mu_);
  Mutex mu_;
  std::multimap<uintptr_t, Region> regions_ ABSL_GUARDED_BY(mu_);
  size_t longest_ ABSL_GUARDED_BY(mu_) = 0;
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
  PENSTOCK_ASSIGN_OR_RETURN(const auto id, Regions().Add({memory, options, {}}));
  return std::unique_ptr<MemoryRegistration>(std::make_unique<Registration>(memory, id));
}

Status AttachRegistrationDevice(RegistrationDevice& device) { return Regions().Attach(device); }

bool IsRegistered(std::span<const iovec> pieces, bool writable) {
  return Regions().Covers(pieces, writable);
}

}  // namespace penstock
