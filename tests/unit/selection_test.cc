#include "common/format/selection.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

// k and v planes of layers 0..3, scales of layers 0..3 together, one index of no layer.
Manifest Mixed() {
  Manifest m;
  for (uint16_t layer = 0; layer < 4; ++layer) {
    for (const SegmentKind kind : {SegmentKind::kK, SegmentKind::kV}) {
      const uint64_t bytes = 10u * (layer + 1);
      m.segments.push_back({kind, kCodecRaw, layer, 1, bytes, bytes, 0});
    }
  }
  m.segments.push_back({SegmentKind::kScales, kCodecRaw, 0, 4, 7, 7, 0});
  m.segments.push_back({SegmentKind::kIndex, kCodecRaw, 0, 0, 3, 3, 0});
  return m;
}

std::vector<uint32_t> Indices(const Selection& selection) {
  const Result<SelectedSegments> selected = SelectSegments(Mixed(), selection);
  std::vector<uint32_t> indices;
  if (selected.ok()) {
    for (const SelectedSegment& s : *selected) indices.push_back(s.index);
  }
  return indices;
}

using Indexes = std::vector<uint32_t>;

TEST(Selection, AllGivesEverySegmentWithoutGaps) {
  const Manifest m = Mixed();
  const Result<SelectedSegments> all = SelectSegments(m, Selection::All());
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->size(), m.segments.size());
  uint64_t at = 0;
  for (const SelectedSegment& s : *all) {
    EXPECT_EQ(s.offset, at);
    EXPECT_EQ(s.length, m.segments[s.index].stored_bytes);
    at += s.length;
  }
  EXPECT_EQ(at, m.TotalStoredBytes());
  EXPECT_EQ(SelectedBytes(*all), m.TotalStoredBytes());
}

TEST(Selection, LayersGiveEverySegmentThatHasOneOfThem) {
  EXPECT_EQ(Indices(Selection::Layers(1, 2)), (Indexes{2, 3, 4, 5, 8}));
  EXPECT_EQ(Indices(Selection::Layers(0, 1)), (Indexes{0, 1, 8}));
  EXPECT_EQ(Indices(Selection::Layers(3, 65535)), (Indexes{6, 7, 8}));
}

TEST(Selection, KindsGivePlanes) {
  EXPECT_EQ(Indices(Selection::Kinds({SegmentKind::kV})), (Indexes{1, 3, 5, 7}));
  EXPECT_EQ(Indices(Selection::Kinds({SegmentKind::kScales, SegmentKind::kIndex})),
            (Indexes{8, 9}));
}

TEST(Selection, ConditionsNarrowEachOther) {
  Selection s = Selection::Kinds({SegmentKind::kK});
  s.layer_first = 2;
  s.layer_count = 1;
  EXPECT_EQ(Indices(s), (Indexes{4}));
  const Result<SelectedSegments> selected = SelectSegments(Mixed(), s);
  EXPECT_EQ((*selected)[0], (SelectedSegment{60, 30, 4}));
}

TEST(Selection, NothingSelectedIsANamedMiss) {
  const Result<SelectedSegments> none = SelectSegments(Mixed(), Selection::Layers(4, 1));
  EXPECT_EQ(none.status().code(), Code::kFormatMismatch);
  EXPECT_NE(none.status().message().find("layers 4..4"), std::string::npos);
  EXPECT_EQ(SelectSegments(Mixed(), Selection::Kinds({SegmentKind::kDelta})).status().code(),
            Code::kFormatMismatch);
  EXPECT_EQ(SelectSegments(Manifest::Plain(9, 1), Selection::Layers(0, 1)).status().code(),
            Code::kFormatMismatch);
}

TEST(Selection, KindNumbersThatNoBitCanNameNeverPass) {
  Manifest m = Manifest::Plain(1, 1);
  m.segments[0].kind = static_cast<SegmentKind>(34);
  EXPECT_FALSE(SelectSegments(m, Selection{.kinds = 1u << 2}).ok());
}

TEST(Selection, EncodesTheDocumentedBytesAndBack) {
  Selection both = Selection::Layers(0x0102, 0x0304);
  both.kinds = 0x05060708;
  const std::pair<Selection, std::vector<int>> cases[] = {
      {Selection::All(), {}},
      {Selection::Layers(2, 3), {2, 0, 3, 0, 0, 0, 0, 0}},
      {Selection::Kinds({SegmentKind::kK, SegmentKind::kV}), {0, 0, 0, 0, 12, 0, 0, 0}},
      {both, {2, 1, 4, 3, 8, 7, 6, 5}}};
  for (const auto& [selection, bytes] : cases) {
    std::vector<std::byte> want;
    for (const int b : bytes) want.push_back(static_cast<std::byte>(b));
    EXPECT_EQ(selection.Encode(), want) << selection.ToString();
    EXPECT_EQ(*Selection::Decode(want), selection);
    for (size_t size = 1; size < want.size(); ++size) {
      EXPECT_EQ(Selection::Decode(ByteSpan(want).first(size)).status().code(),
                Code::kCorruptMessage);
    }
  }
}

TEST(Selection, RefusesWhatItWouldNotWriteAndWhatItDoesNotKnow) {
  const auto decode = [](std::vector<uint8_t> bytes) {
    return Selection::Decode(std::as_bytes(std::span(bytes))).status().code();
  };
  EXPECT_EQ(decode({0, 0, 0, 0, 0, 0, 0, 0}), Code::kCorruptMessage);  // "All", the long way.
  EXPECT_EQ(decode({1, 0, 0, 0, 4, 0, 0, 0}), Code::kCorruptMessage);  // First without count.
  EXPECT_EQ(decode({1, 0, 1, 0, 0, 0, 0, 0, 0}), Code::kUnimplemented);
}

}  // namespace
}  // namespace penstock
