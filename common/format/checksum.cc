#include "common/format/checksum.h"

#include "common/format/checksum_kernel.h"

namespace penstock {
namespace internal {

size_t AvailableChecksumKernels(const ChecksumKernel** kernels) {
  size_t count = 0;
  kernels[count++] = &kChecksumBaseline;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) kernels[count++] = &kChecksumAvx2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512f")) {
    kernels[count++] = &kChecksumAvx512;
  }
#endif
  return count;
}

}  // namespace internal

namespace {

const internal::ChecksumKernel& Kernel() {
  static const internal::ChecksumKernel* const widest = [] {
    const internal::ChecksumKernel* kernels[3];
    return kernels[internal::AvailableChecksumKernels(kernels) - 1];
  }();
  return *widest;
}

uint64_t Seed(const ChunkKey& key, uint64_t total_bytes) {
  return key.Word() ^ (total_bytes * kChecksumLengthFactor);
}

}  // namespace

uint64_t ChunkChecksum(const ChunkKey& key, ByteSpan bytes) {
  return Kernel().hash(bytes.data(), bytes.size(), Seed(key, bytes.size()));
}

uint64_t ChunkChecksum(const ChunkKey& key, std::span<const iovec> pieces) {
  uint64_t total = 0;
  for (const iovec& piece : pieces) total += piece.iov_len;
  return Kernel().hash_pieces(pieces.data(), pieces.size(), Seed(key, total));
}

struct ChecksumStream::State {
  internal::ChecksumState hash;
};

ChecksumStream::ChecksumStream(const ChunkKey& key, uint64_t total_bytes)
    : state_(std::make_unique<State>()) {
  Kernel().reset(&state_->hash, Seed(key, total_bytes));
}
ChecksumStream::~ChecksumStream() = default;
ChecksumStream::ChecksumStream(ChecksumStream&&) noexcept = default;
ChecksumStream& ChecksumStream::operator=(ChecksumStream&&) noexcept = default;

void ChecksumStream::Update(ByteSpan bytes) {
  Kernel().update(&state_->hash, bytes.data(), bytes.size());
}

uint64_t ChecksumStream::Finish() const { return Kernel().digest(&state_->hash); }

uint64_t PlainChecksum(ByteSpan bytes) { return Kernel().hash(bytes.data(), bytes.size(), 0); }
uint64_t PlainChecksum(std::span<const iovec> pieces) {
  return Kernel().hash_pieces(pieces.data(), pieces.size(), 0);
}

std::string_view ChecksumKernelName() { return Kernel().name; }

}  // namespace penstock
