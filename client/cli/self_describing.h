// Self-describing values: every 64 bytes say to which key, version, place and length they belong,
// so that wrong bytes are recognised by themselves, without a copy to compare with.
//
// V(key, version, n) is n bytes. Each whole line of 64 bytes holds
//
//   hash of the key u64 | version u64 | line number u64 | n u64 | 28 bytes derived from these |
//   CRC-32
//
// and a shorter last line is the beginning of what a whole one would be.

#ifndef PENSTOCK_CLIENT_CLI_SELF_DESCRIBING_H_
#define PENSTOCK_CLIENT_CLI_SELF_DESCRIBING_H_

#include <cstdint>
#include <string>

#include "common/base/bytes.h"

namespace penstock {

inline constexpr size_t kValueLine = 64;
// The shortest value that tells its own version.
inline constexpr size_t kMinValueBytes = kValueLine;

// Fills `out` with V(key_hash, version, out.size()).
void FillValue(uint64_t key_hash, uint64_t version, MutableByteSpan out);

struct ValueVerdict {
  enum class Kind {
    kOk,        // V(key, version, n), whole.
    kShort,     // The beginning of a longer value.
    kTorn,      // Lines of several versions, lengths or places.
    kWrongKey,  // A value of another key.
    kGarbage,   // No value at all.
  };
  Kind kind = Kind::kGarbage;
  uint64_t version = 0;  // With kOk.
  size_t bad_line = 0;   // The first one that is wrong.
  std::string Describe() const;
};

// What `bytes`, read under the key, are.
ValueVerdict CheckValue(uint64_t key_hash, ByteSpan bytes);

}  // namespace penstock

#endif  // PENSTOCK_CLIENT_CLI_SELF_DESCRIBING_H_
