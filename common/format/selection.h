// Selection: which segments of a chunk a reader wants. Layer-wise loading, one plane, or a sketch
// first are selections, not other calls. Wire form: docs/formats/manifest.md.
//
// Thread safety: plain values and pure functions.

#ifndef PENSTOCK_COMMON_FORMAT_SELECTION_H_
#define PENSTOCK_COMMON_FORMAT_SELECTION_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/format/manifest.h"

namespace penstock {

// A segment is selected when it passes every condition that is set.
struct Selection {
  // Layers [layer_first, layer_first + layer_count); layer_count 0: no condition. A segment passes
  // when it has at least one of the layers (it is then read whole: its checksum covers all of it);
  // one that belongs to no layer does not pass.
  uint16_t layer_first = 0;
  uint16_t layer_count = 0;
  // Bit n: SegmentKind n passes; 0: no condition.
  uint32_t kinds = 0;

  static Selection All() { return {}; }
  static Selection Layers(uint16_t first, uint16_t count) {
    return {.layer_first = first, .layer_count = count};
  }
  static Selection Kinds(std::initializer_list<SegmentKind> kinds);

  bool IsAll() const { return layer_count == 0 && kinds == 0; }
  bool Passes(const Segment& segment) const;
  // "all", "layers 4..7, kinds 0x6": for messages.
  std::string ToString() const;

  // Empty for All().
  std::vector<std::byte> Encode() const;
  // `bytes` is exactly one encoding. Errors: kCorruptMessage (not as Encode() writes it),
  // kUnimplemented (longer: a condition that this build does not know; it would read too much).
  static Result<Selection> Decode(ByteSpan bytes);

  friend bool operator==(const Selection&, const Selection&) = default;
};

struct SelectedSegment {
  uint64_t offset = 0;  // Within the stored bytes of the chunk.
  uint64_t length = 0;  // Stored bytes.
  uint32_t index = 0;   // In manifest.segments.
  friend bool operator==(const SelectedSegment&, const SelectedSegment&) = default;
};
using SelectedSegments = absl::InlinedVector<SelectedSegment, 1>;

// The selected segments in chunk order. Error: kFormatMismatch when nothing passes, which is a
// miss for the reader: the chunk does not hold what was asked for.
// REQUIRES: manifest.Validate().ok().
Result<SelectedSegments> SelectSegments(const Manifest& manifest, const Selection& selection);

// Sum of the lengths: what the reader's memory must hold.
uint64_t SelectedBytes(const SelectedSegments& segments);

}  // namespace penstock

#endif  // PENSTOCK_COMMON_FORMAT_SELECTION_H_
