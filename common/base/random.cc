#include "common/base/random.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <vector>

namespace penstock {

void RandomBytes(MutableByteSpan out) {
  while (!out.empty()) {
    const ssize_t got = getrandom(out.data(), out.size(), 0);
    if (got < 0 && errno != EINTR) std::abort();
    if (got > 0) out = out.subspan(static_cast<size_t>(got));
  }
}

uint64_t Random64() {
  uint64_t value = 0;
  RandomBytes(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

uint64_t NewIncarnation() {
  uint64_t value = 0;
  while (value == 0) value = Random64();
  return value;
}

std::string RandomToken(size_t bytes) {
  std::vector<std::byte> raw(bytes);
  RandomBytes(raw);
  std::string token;
  for (const std::byte b : raw) {
    fmt::format_to(std::back_inserter(token), "{:02x}", static_cast<unsigned>(b));
  }
  return token;
}

}  // namespace penstock
