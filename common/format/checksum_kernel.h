// The compiled variants of XXH3-64 and the choice among them. Internal to common/format and its
// tests; everybody else uses checksum.h.
//
// Each variant is the same source (checksum_kernel.inc) compiled with other instruction-set flags.
// Those files hold no inline function or template of the C++ library: the linker keeps one copy of
// such a function, and a copy compiled for AVX2 must never be the one that an older machine runs
// (tests/unit/checksum_symbols_test.sh looks at the objects).

#ifndef PENSTOCK_COMMON_FORMAT_CHECKSUM_KERNEL_H_
#define PENSTOCK_COMMON_FORMAT_CHECKSUM_KERNEL_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

namespace penstock::internal {

// Storage for the state of one streaming hash, owned by the caller.
struct alignas(64) ChecksumState {
  unsigned char bytes[576];
};

struct ChecksumKernel {
  const char* name;
  uint64_t (*hash)(const void* data, size_t size, uint64_t seed);
  uint64_t (*hash_pieces)(const iovec* pieces, size_t count, uint64_t seed);
  void (*reset)(ChecksumState* state, uint64_t seed);
  void (*update)(ChecksumState* state, const void* data, size_t size);
  uint64_t (*digest)(const ChecksumState* state);
};

extern const ChecksumKernel kChecksumBaseline;  // SSE2 on x86-64, NEON on aarch64.
#if defined(__x86_64__)
extern const ChecksumKernel kChecksumAvx2;
extern const ChecksumKernel kChecksumAvx512;
#endif

// The variants that this machine can run, widest last; never empty. `kernels` has room for 3.
size_t AvailableChecksumKernels(const ChecksumKernel** kernels);

}  // namespace penstock::internal

#endif  // PENSTOCK_COMMON_FORMAT_CHECKSUM_KERNEL_H_
