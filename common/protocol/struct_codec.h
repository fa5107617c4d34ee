// StructWriter and StructReader: a structure that later versions may append fields to.
//
//   length of the fixed part, itself included (u16) | fixed part | rest
//
// A reader takes the fields that it knows out of the fixed part and skips what follows them there;
// a fixed part that is shorter than expected is malformed. Docs: docs/formats/wire.md.

#ifndef PENSTOCK_COMMON_PROTOCOL_STRUCT_CODEC_H_
#define PENSTOCK_COMMON_PROTOCOL_STRUCT_CODEC_H_

#include <cstdint>
#include <utility>

#include "common/base/bytes.h"

namespace penstock {

class StructWriter {
 public:
  StructWriter() : StructWriter(ByteWriter()) {}
  // Appends the structure to `out`.
  explicit StructWriter(ByteWriter out) : out_(std::move(out)), start_(out_.size()) { out_.U16(0); }

  // For the fields of the fixed part.
  ByteWriter& Fixed() { return out_; }
  // Ends the fixed part at the first call; for what follows it.
  ByteWriter& End() {
    if (!ended_) out_.Patch(start_, static_cast<uint16_t>(out_.size() - start_));
    ended_ = true;
    return out_;
  }

 private:
  ByteWriter out_;
  size_t start_;
  bool ended_ = false;
};

class StructReader {
 public:
  explicit StructReader(ByteSpan input) : fixed_({}), rest_(input) {
    const uint16_t size = rest_.U16();
    // An impossible length leaves `fixed_` empty: its first read fails.
    if (size >= sizeof(uint16_t)) fixed_ = ByteReader(rest_.Take(size - sizeof(uint16_t)));
  }

  ByteReader& fixed() { return fixed_; }
  ByteReader& rest() { return rest_; }
  bool ok() const { return fixed_.ok() && rest_.ok(); }

 private:
  ByteReader fixed_;
  ByteReader rest_;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_PROTOCOL_STRUCT_CODEC_H_
