// MemoryMap: which memory of this process can be read or written, asked before it is touched, so
// that a caller's wrong pointer becomes kBadBuffer and not a crash.
//
// Linux 6.11 and later answer for one mapping in about a microsecond. Older kernels only print all
// mappings, so there the answer is remembered and only checked for memory that has gone since; a
// mapping whose protection was taken away since is then not noticed. Where /proc is not mounted,
// everything but null passes.

#ifndef PENSTOCK_CLIENT_LIB_MEMORY_MAP_H_
#define PENSTOCK_CLIENT_LIB_MEMORY_MAP_H_

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace penstock {

// Thread-safe. A process that forked must make a new one.
class MemoryMap {
 public:
  enum class Access { kRead, kWrite };
  // How it looks: chosen by what the kernel can do.
  enum class Method { kQuery, kListing, kTrust };

  MemoryMap();
  // Like MemoryMap(), but at best `method`: for tests of what older kernels get.
  explicit MemoryMap(Method method);
  ~MemoryMap();
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;

  Method method() const { return method_; }

  // One look at the buffers of one call: what it has seen it does not ask again, so it must not
  // outlive the call. Not thread-safe.
  class Look {
   public:
    Look(MemoryMap& map, Access access) : map_(map), access_(access) {}
    // Error: kBadBuffer saying which address and why. Empty pieces pass.
    Status Check(std::span<const iovec> pieces);

   private:
    MemoryMap& map_;
    const Access access_;
    uintptr_t begin_ = 0, end_ = 0;  // Known to be good.
  };

 private:
  struct Mapping {
    uintptr_t begin = 0, end = 0;
    bool readable = false, writable = false;
  };

  // The mapping that holds `address`; an empty one when there is none.
  Mapping Find(uintptr_t address, uintptr_t end);
  Mapping Query(uintptr_t address) const;
  Mapping FindListed(uintptr_t address, uintptr_t end) ABSL_LOCKS_EXCLUDED(mu_);
  void ReadListing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  int fd_ = -1;
  Method method_ = Method::kTrust;
  Mutex mu_;
  std::vector<Mapping> listed_ ABSL_GUARDED_BY(mu_);  // By address.
};

}  // namespace penstock

#endif  // PENSTOCK_CLIENT_LIB_MEMORY_MAP_H_
