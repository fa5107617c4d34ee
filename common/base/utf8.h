// Utf8Length: recognises one well-formed UTF-8 character.

#ifndef PENSTOCK_COMMON_BASE_UTF8_H_
#define PENSTOCK_COMMON_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace penstock {

// Bytes (1 to 4) of the well-formed UTF-8 character at the start of `text`; 0 when it is empty,
// malformed (cut, too long a form, a surrogate, beyond U+10FFFF) or a control character (U+0000 to
// U+001F, U+007F to U+009F).
inline size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (text.empty()) return 0;
  const uint8_t lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7F ? 1 : 0;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // What the ranges of the first byte do not exclude yet, by its second byte.
  const uint8_t next = byte(1);
  const bool too_long = (lead == 0xE0 && next < 0xA0) || (lead == 0xF0 && next < 0x90);
  const bool no_character = (lead == 0xED && next > 0x9F) || (lead == 0xF4 && next > 0x8F);
  const bool control = lead == 0xC2 && next < 0xA0;
  return too_long || no_character || control ? 0 : length;
}

}  // namespace penstock

#endif  // PENSTOCK_COMMON_BASE_UTF8_H_
