// ByteReader and ByteWriter: bounds-checked little-endian encoding, the only way that Penstock
// parses or builds a message, a manifest or a descriptor.
//
// A reader never throws and never reads past its input: the first failed read latches ok() to
// false, and every later read returns zeros or empty spans, so a parser may read a whole struct and
// check ok() once at its end.

#ifndef PENSTOCK_COMMON_BASE_BYTES_H_
#define PENSTOCK_COMMON_BASE_BYTES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock {

static_assert(std::endian::native == std::endian::little, "formats are little-endian in memory");

using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

inline ByteSpan AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view AsText(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class ByteReader {
 public:
  explicit ByteReader(ByteSpan input) : rest_(input) {}

  template <typename T>
  T Read() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (const ByteSpan raw = Take(sizeof(T)); raw.size() == sizeof(T)) {
      std::memcpy(&value, raw.data(), sizeof(T));
    }
    return value;
  }
  uint8_t U8() { return Read<uint8_t>(); }
  uint16_t U16() { return Read<uint16_t>(); }
  uint32_t U32() { return Read<uint32_t>(); }
  uint64_t U64() { return Read<uint64_t>(); }

  // The next `size` bytes, a view into the input; empty, and !ok(), when there are fewer.
  ByteSpan Take(size_t size) {
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const ByteSpan taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

  bool ok() const { return ok_; }
  size_t remaining() const { return ok_ ? rest_.size() : 0; }
  // Everything was read and nothing is left.
  bool AtEnd() const { return ok_ && rest_.empty(); }

 private:
  ByteSpan rest_;
  bool ok_ = true;
};

class ByteWriter {
 public:
  ByteWriter() = default;

  template <typename T>
  ByteWriter& Write(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return Append({reinterpret_cast<const std::byte*>(&value), sizeof(T)});
  }
  ByteWriter& U8(uint8_t v) { return Write(v); }
  ByteWriter& U16(uint16_t v) { return Write(v); }
  ByteWriter& U32(uint32_t v) { return Write(v); }
  ByteWriter& U64(uint64_t v) { return Write(v); }
  // `bytes` must not be part of this writer.
  ByteWriter& Append(ByteSpan bytes) {
    // Not insert(): where it is inlined, GCC 12 warns of an overflow that cannot happen.
    const size_t at = out_.size();
    out_.resize(at + bytes.size());
    if (!bytes.empty()) std::memcpy(out_.data() + at, bytes.data(), bytes.size());
    return *this;
  }
  // Overwrites bytes already written (a length or a checksum known only at the end).
  // REQUIRES: offset + sizeof(T) <= size().
  template <typename T>
  void Patch(size_t offset, const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(out_.data() + offset, &value, sizeof(T));
  }

  void Reserve(size_t size) { out_.reserve(size); }
  size_t size() const { return out_.size(); }
  ByteSpan bytes() const { return out_; }
  std::vector<std::byte> Release() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_BASE_BYTES_H_
