// Manifest: what a chunk is made of. Format: docs/formats/manifest.md, version 1.
//
// A manifest lists segments: contiguous runs of stored bytes, in the order in which they lie in the
// chunk, each with what it is and its checksum. A plain chunk has one segment (or one a layer) and
// a manifest of about 100 bytes. The bytes of the segments follow one another without gaps, so the
// offset of a segment is the sum of the stored lengths before it.

#ifndef PENSTOCK_COMMON_FORMAT_MANIFEST_H_
#define PENSTOCK_COMMON_FORMAT_MANIFEST_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/keys/chunk_key.h"

namespace penstock {

enum class SegmentKind : uint8_t {
  kOpaque = 0,
  kKv = 1,
  kK = 2,
  kV = 3,
  kLatent = 4,
  kState = 5,
  kScales = 6,
  kRefinement = 7,
  kSketch = 8,
  kIndex = 9,
  kResidual = 10,
  kDelta = 11,
};

// Codec numbers are assigned in docs/formats/codecs.md; 0 is the bytes as they are.
inline constexpr uint16_t kCodecRaw = 0;

struct Segment {
  SegmentKind kind = SegmentKind::kOpaque;
  uint16_t codec = kCodecRaw;
  uint16_t layer_first = 0;
  uint16_t layer_count = 0;    // 0: belongs to no layer.
  uint64_t logical_bytes = 0;  // After decoding.
  uint64_t stored_bytes = 0;   // As stored and sent.
  uint64_t checksum = 0;       // ChunkChecksum() over the stored bytes.
  friend bool operator==(const Segment&, const Segment&) = default;
};

enum ManifestFlags : uint32_t {
  kManifestLossy = 1u << 0,  // Absent: exact.
  kManifestQueryDependent = 1u << 1,
  kManifestPositionFree = 1u << 2,
  kManifestMutable = 1u << 3,
};
// An unknown flag in the lower half may be ignored; one in the upper half changes what the bytes
// mean, so a build that does not know it refuses the manifest.
inline constexpr uint32_t kManifestCriticalFlags = 0xFFFF0000u;

struct Manifest {
  uint32_t flags = 0;
  uint32_t token_count = 0;
  // What a reader must present besides the key; 0 = nothing.
  uint64_t tag = 0;
  absl::InlinedVector<Segment, 1> segments;
  std::vector<uint32_t> positions;  // Original positions, one a token; empty: dense.
  std::vector<Digest256> assets;    // Codec assets needed to decode, by hash.

  static constexpr size_t kMaxSegments = 4096;
  static constexpr size_t kMaxEncodedBytes = 1u << 20;
  static constexpr size_t kHeaderBytes = 48;
  static constexpr size_t kSegmentBytes = 32;

  // Sum of stored_bytes. A valid manifest never overflows it.
  uint64_t TotalStoredBytes() const;
  // One opaque segment over `payload_bytes` bytes with `checksum`.
  static Manifest Plain(uint64_t payload_bytes, uint64_t checksum, uint32_t token_count = 0);

  // What Decode() demands of the contents: 1 to kMaxSegments segments, sums of lengths below 2^63,
  // layers below 2^16, no or token_count positions, no unknown critical flag, an encoding of at
  // most kMaxEncodedBytes. Writers check it before they encode; errors: kInvalidArgument,
  // kVersionSkew (a critical flag).
  Status Validate() const;

  // Size of the encoding.
  size_t EncodedBytes() const;
  // Appends the encoding to `out`. REQUIRES: Validate().ok().
  void EncodeTo(ByteWriter& out) const;
  std::vector<std::byte> Encode() const;
  // `bytes` is exactly one encoding. Errors: kCorruptMessage (truncated or with something behind
  // it, wrong magic, checksum, counts, lengths), kVersionSkew (a version or a critical flag this
  // build does not read). Fields appended by later builds are skipped, and are lost when the
  // result is encoded again: who stores a manifest stores the bytes it was given.
  static Result<Manifest> Decode(ByteSpan bytes);

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_FORMAT_MANIFEST_H_
