// What every fuzz harness shares: the entry point's form, and a check that stops the process.
//
// A harness feeds foreign bytes to one parser and checks what must hold for whatever it accepts.
// It is linked with libFuzzer to search (preset fuzz), and with replay_main.cc to run over the kept
// corpus in every build, with whatever compiler and sanitizer that build has.

#ifndef PENSTOCK_TESTS_FUZZ_HARNESS_H_
#define PENSTOCK_TESTS_FUZZ_HARNESS_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "common/base/bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Never compiled out: a property that does not hold is a finding.
#define FUZZ_CHECK(condition)                                                             \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)

namespace penstock {

inline ByteSpan FuzzInput(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

inline bool SameBytes(ByteSpan a, ByteSpan b) { return AsText(a) == AsText(b); }

}  // namespace penstock

#endif  // PENSTOCK_TESTS_FUZZ_HARNESS_H_
