// Digest256: a SHA-256 digest, the form of every identity in Penstock.

#ifndef PENSTOCK_COMMON_KEYS_DIGEST_H_
#define PENSTOCK_COMMON_KEYS_DIGEST_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace penstock {

struct Digest256 {
  static constexpr size_t kBytes = 32;

  std::array<uint8_t, kBytes> bytes{};

  // SHA-256 over the concatenation of `parts`.
  static Digest256 Sha256(std::initializer_list<ByteSpan> parts);
  // 64 lower- or upper-case hexadecimal digits, nothing else.
  static Result<Digest256> FromHex(std::string_view hex);

  std::string ToHex() const;
  // The first 12 hexadecimal digits: enough for a log line.
  std::string ToShortHex() const { return ToHex().substr(0, 12); }
  bool IsZero() const { return *this == Digest256{}; }
  // The first eight bytes, little-endian: already uniformly distributed.
  uint64_t Word() const {
    uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof(word));
    return word;
  }
  ByteSpan span() const { return std::as_bytes(std::span(bytes)); }

  // clang-tidy 14 takes the comparison that is generated for a 0.
  // NOLINTNEXTLINE(modernize-use-nullptr)
  friend auto operator<=>(const Digest256&, const Digest256&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Digest256& d) {
    return H::combine(std::move(h), d.Word());
  }
};
static_assert(sizeof(Digest256) == 32);

}  // namespace penstock

#endif  // PENSTOCK_COMMON_KEYS_DIGEST_H_
