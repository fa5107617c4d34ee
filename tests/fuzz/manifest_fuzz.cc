// Manifests, from a client, from a daemon, later from a disk.

#include <vector>

#include "common/format/manifest.h"
#include "common/format/selection.h"
#include "tests/fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const penstock::ByteSpan input = penstock::FuzzInput(data, size);
  const auto decoded = penstock::Manifest::Decode(input);
  if (!decoded.ok()) return 0;
  const penstock::Manifest& manifest = decoded.value();
  FUZZ_CHECK(manifest.Validate().ok());
  FUZZ_CHECK(manifest.segments.size() <= penstock::Manifest::kMaxSegments);

  const std::vector<std::byte> encoded = manifest.Encode();
  const auto again = penstock::Manifest::Decode(encoded);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again.value() == manifest);

  // What a reader may select lies within the chunk.
  const auto all = penstock::SelectSegments(manifest, penstock::Selection::All());
  if (all.ok()) FUZZ_CHECK(penstock::SelectedBytes(all.value()) == manifest.TotalStoredBytes());
  const auto some = penstock::SelectSegments(manifest, penstock::Selection::Layers(1, 2));
  if (!some.ok()) return 0;
  for (const penstock::SelectedSegment& segment : some.value()) {
    FUZZ_CHECK(segment.offset + segment.length <= manifest.TotalStoredBytes());
  }
  return 0;
}
