#include "common/format/selection.h"

#include <fmt/format.h>

namespace penstock {
namespace {

constexpr size_t kEncodedBytes = 8;

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

std::vector<std::byte> Selection::Encode() const {
  if (IsAll()) return {};
  ByteWriter out;
  out.Reserve(kEncodedBytes);
  out.U16(layer_count == 0 ? 0 : layer_first).U16(layer_count).U32(kinds);
  return out.Release();
}

Result<Selection> Selection::Decode(ByteSpan bytes) {
  if (bytes.empty()) return All();
  if (bytes.size() > kEncodedBytes) {
    return Status(Code::kUnimplemented, fmt::format("selection of {} bytes", bytes.size()));
  }
  ByteReader in(bytes);
  Selection s;
  s.layer_first = in.U16();
  s.layer_count = in.U16();
  s.kinds = in.U32();
  const bool layers_ok = s.layer_count > 0 || s.layer_first == 0;
  if (!in.ok() || s.IsAll() || !layers_ok) {
    return Status(Code::kCorruptMessage, "selection: truncated or not canonical");
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
