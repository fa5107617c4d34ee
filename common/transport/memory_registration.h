// Memory that wires may read and write directly: the daemon's arena and the buffers of a client.
//
// Registering checks that the memory is really there, so that a wrong pointer is an error before
// any byte moves and never a crash. The tcp wire needs no registration (the kernel checks every
// access), but callers register all the same and need not know which wire they use; the ucx wire
// takes no other memory.
//
// Thread-safe. Registrations are of the process: every session may use them.

#ifndef PENSTOCK_COMMON_TRANSPORT_MEMORY_REGISTRATION_H_
#define PENSTOCK_COMMON_TRANSPORT_MEMORY_REGISTRATION_H_

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace penstock {

struct RegistrationOptions {
  bool writable = true;  // False: wires only read it.
  // Longest piece that is registered with a device at a time; longer memory is registered in
  // several. 0: as long as it is.
  uint64_t max_registration_bytes = 0;
};

// Ends with its object. REQUIRES (for the destructor): no transfer uses the memory.
class MemoryRegistration {
 public:
  // Errors: kInvalidArgument for no memory; kBadBuffer for memory that is not mapped, or not
  // writable where it should be, naming the first address; kResourceExhausted when a device
  // refuses it (memlock).
  static Result<std::unique_ptr<MemoryRegistration>> Create(MutableByteSpan memory,
                                                            const RegistrationOptions& options);
  virtual ~MemoryRegistration() = default;

  virtual MutableByteSpan memory() const = 0;
};

// kBadBuffer unless [base, base + size) is mapped in this process (and, if `writable`, may be
// written). Reads /proc/self/maps: not for the data path.
Status CheckMapped(const void* base, uint64_t size, bool writable);

// A kind of device that wants to know all registered memory.
class RegistrationDevice {
 public:
  virtual ~RegistrationDevice() = default;
  // The result is held while the memory is registered. Thread-safe. Errors: kResourceExhausted.
  virtual Result<std::shared_ptr<void>> Map(MutableByteSpan memory) = 0;
};

// Shows `device` all that is registered, now and later. `device` is never removed.
// Errors: of its Map(), for memory registered already; it is not attached then.
Status AttachRegistrationDevice(RegistrationDevice& device);

// True if every piece lies in one registration each (and, if `writable`, in one that may be
// written). Empty pieces lie anywhere.
bool IsRegistered(std::span<const iovec> pieces, bool writable);

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_MEMORY_REGISTRATION_H_
