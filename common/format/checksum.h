// The checksum of stored bytes: XXH3-64, seeded with the chunk key and the length, so that right
// bytes under the wrong key, or the right beginning of a longer value, do not pass either.
//
// Made by the writer, stored in the manifest, checked when the daemon commits and again by the
// reader after the last hop. The widest vector instructions of the machine are chosen at run time.

#ifndef PENSTOCK_COMMON_FORMAT_CHECKSUM_H_
#define PENSTOCK_COMMON_FORMAT_CHECKSUM_H_

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "common/base/bytes.h"
#include "common/keys/chunk_key.h"

namespace penstock {

// seed = first eight bytes of the key, little-endian, XOR (length * this number, modulo 2^64).
// Part of the format (docs/formats/manifest.md).
inline constexpr uint64_t kChecksumLengthFactor = 0x9E3779B97F4A7C15;

// Checksum of `bytes` as one segment of the chunk `key`.
uint64_t ChunkChecksum(const ChunkKey& key, ByteSpan bytes);
// The same over scattered pieces, read in order.
uint64_t ChunkChecksum(const ChunkKey& key, std::span<const iovec> pieces);

// The same for bytes that arrive piece by piece. `total_bytes` must be known at the start; when
// another number of bytes arrives, the result is that of no value, so it never verifies.
// Finish() may be called at any time and again after more bytes. A moved-from stream may only be
// assigned to or destroyed. Thread-compatible.
class ChecksumStream {
 public:
  ChecksumStream(const ChunkKey& key, uint64_t total_bytes);
  ~ChecksumStream();
  ChecksumStream(ChecksumStream&&) noexcept;
  ChecksumStream& operator=(ChecksumStream&&) noexcept;

  void Update(ByteSpan bytes);
  uint64_t Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// XXH3-64 with seed 0: for headers and manifests, which no key names.
uint64_t PlainChecksum(ByteSpan bytes);
uint64_t PlainChecksum(std::span<const iovec> pieces);

// The variant in use, for start-up logs and `doctor`: "baseline", "avx2" or "avx512".
std::string_view ChecksumKernelName();

}  // namespace penstock

#endif  // PENSTOCK_COMMON_FORMAT_CHECKSUM_H_
