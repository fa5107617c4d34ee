// Sizes and durations as people write them. The grammar is documented in docs/configuration.md; it
// is exact: what is not clearly meant is refused, never guessed.

#ifndef PENSTOCK_COMMON_BASE_UNITS_H_
#define PENSTOCK_COMMON_BASE_UNITS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/deadline.h"
#include "common/base/status.h"

namespace penstock {

// "4096", "64KiB", "1.5 GiB", "10GB", "1e9": a decimal number, at most one space, and a unit (B,
// KiB MiB GiB TiB PiB = powers of 1024, KB MB GB TB PB = powers of 1000; none = bytes). Units are
// case-sensitive. The result must be a whole number of bytes below 2^63.
// Error: kInvalidArgument, saying what was expected and what was probably meant.
Result<uint64_t> ParseBytes(std::string_view text);

// "500ms", "1.5 s", "0": a decimal number, at most one space, and one of ns us ms s m h; only 0
// needs no unit. The result must be a whole number of nanoseconds. Error: kInvalidArgument.
Result<Duration> ParseDuration(std::string_view text);

// Shortest exact form, in the largest unit that leaves no fraction; the parsers read it back.
// "4GiB", "10GB", "1500ms", "4097".
std::string FormatBytes(uint64_t bytes);
std::string FormatDuration(Duration duration);

// Rounded to three digits, for people: "3.73 GiB", "512 B", "1.50 s".
std::string RoughBytes(uint64_t bytes);
std::string RoughDuration(Duration duration);

}  // namespace penstock

#endif  // PENSTOCK_COMMON_BASE_UNITS_H_
