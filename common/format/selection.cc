#include "common/format/selection.h"

#include <fmt/format.h>

namespace penstock {
namespace {

constexpr uint8_t kAllBytes = 0;        // Nothing follows: every segment.
constexpr uint8_t kConditionBytes = 8;  // layer_first, layer_count, kinds.

}  // namespace

Selection Selection::Kinds(std::initializer_list<SegmentKind> kinds) {
  Selection s;
  for (const SegmentKind kind : kinds) s.kinds |= 1u << (static_cast<uint8_t>(kind) & 31);
  return s;
}

bool Selection::Passes(const Segment& segment) const {
  if (layer_count > 0) {
    const uint32_t begin = layer_first, end = begin + layer_count;
    const uint32_t has_begin = segment.layer_first, has_end = has_begin + segment.layer_count;
    if (segment.layer_count == 0 || has_begin >= end || has_end <= begin) return false;
  }
  if (kinds == 0) return true;
  const auto kind = static_cast<uint8_t>(segment.kind);
  return kind < 32 && (kinds >> kind & 1u) != 0;
}

std::string Selection::ToString() const {
  if (IsAll()) return "all";
  std::string text;
  if (layer_count > 0) {
    text = fmt::format("layers {}..{}", layer_first, uint32_t{layer_first} + layer_count - 1);
  }
  if (kinds != 0) text += fmt::format("{}kinds {:#x}", text.empty() ? "" : ", ", kinds);
  return text;
}

void Selection::EncodeTo(ByteWriter& out) const {
  if (IsAll()) {
    out.U8(kAllBytes);
    return;
  }
  out.U8(kConditionBytes);
  out.U16(layer_count == 0 ? 0 : layer_first).U16(layer_count).U32(kinds);
}

Result<Selection> Selection::DecodeFrom(ByteReader& in) {
  const uint8_t size = in.U8();
  if (!in.ok()) return Status(Code::kCorruptMessage, "selection: truncated");
  if (size == kAllBytes) return All();
  if (size > kConditionBytes) {
    return Status(Code::kUnimplemented, fmt::format("selection of {} bytes", size));
  }
  Selection s;
  s.layer_first = in.U16();
  s.layer_count = in.U16();
  s.kinds = in.U32();
  if (!in.ok()) return Status(Code::kCorruptMessage, "selection: truncated");
  const bool layers_ok = s.layer_count > 0 || s.layer_first == 0;
  if (size != kConditionBytes || s.IsAll() || !layers_ok) {
    return Status(Code::kCorruptMessage, "selection: not canonical");
  }
  return s;
}

Result<SelectedSegments> SelectSegments(const Manifest& manifest, const Selection& selection) {
  SelectedSegments selected;
  uint64_t offset = 0;
  for (uint32_t i = 0; i < manifest.segments.size(); ++i) {
    const Segment& segment = manifest.segments[i];
    if (selection.Passes(segment)) selected.push_back({offset, segment.stored_bytes, i});
    offset += segment.stored_bytes;
  }
  if (selected.empty()) {
    return Status(Code::kFormatMismatch,
                  fmt::format("none of {} segments is in the selection: {}",
                              manifest.segments.size(), selection.ToString()));
  }
  return selected;
}

uint64_t SelectedBytes(const SelectedSegments& segments) {
  uint64_t total = 0;
  for (const SelectedSegment& s : segments) total += s.length;
  return total;
}

}  // namespace penstock
