// Manifests, from a client, from a daemon, later from a disk.

#include <cstring>
#include <vector>

#include "common/format/checksum.h"
#include "common/format/manifest.h"
#include "common/format/selection.h"
#include "tests/fuzz/harness.h"

namespace penstock {
namespace {

void Check(ByteSpan input) {
  const auto decoded = Manifest::Decode(input);
  if (!decoded.ok()) return;
  const Manifest& manifest = decoded.value();
  FUZZ_CHECK(manifest.Validate().ok());
  FUZZ_CHECK(manifest.segments.size() <= Manifest::kMaxSegments);

  const std::vector<std::byte> encoded = manifest.Encode();
  const auto again = Manifest::Decode(encoded);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again.value() == manifest);

  // What a reader may select lies within the chunk.
  const auto all = SelectSegments(manifest, Selection::All());
  if (all.ok()) FUZZ_CHECK(SelectedBytes(all.value()) == manifest.TotalStoredBytes());
  const auto some = SelectSegments(manifest, Selection::Layers(1, 2));
  if (!some.ok()) return;
  for (const SelectedSegment& segment : some.value()) {
    FUZZ_CHECK(segment.offset + segment.length <= manifest.TotalStoredBytes());
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check(penstock::FuzzInput(data, size));
  // Random bytes have a wrong checksum: with the right one they reach what lies behind that check.
  constexpr size_t kChecksumAt = 40;
  if (size < kChecksumAt + sizeof(uint64_t)) return 0;
  std::vector<uint8_t> mended(data, data + size);
  std::memset(mended.data() + kChecksumAt, 0, sizeof(uint64_t));
  const uint64_t checksum = penstock::PlainChecksum(penstock::FuzzInput(mended.data(), size));
  std::memcpy(mended.data() + kChecksumAt, &checksum, sizeof(checksum));
  penstock::Check(penstock::FuzzInput(mended.data(), size));
  return 0;
}
