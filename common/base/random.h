// Randomness from the kernel: for incarnations, tokens and seeds, not for hot paths.

#ifndef PENSTOCK_COMMON_BASE_RANDOM_H_
#define PENSTOCK_COMMON_BASE_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/bytes.h"

namespace penstock {

// Fills `out` from getrandom(2). Ends the process where the kernel has none to give: an identity
// must never be a guess.
void RandomBytes(MutableByteSpan out);

uint64_t Random64();

// What a process draws at start to tell itself from its predecessors. Never 0, which means "none".
uint64_t NewIncarnation();

// `bytes` random bytes as lower-case hexadecimal digits.
std::string RandomToken(size_t bytes = 16);

}  // namespace penstock

#endif  // PENSTOCK_COMMON_BASE_RANDOM_H_
