#include "client/cli/self_describing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace penstock {
namespace {

struct Line {
  uint64_t key_hash = 0;
  uint64_t version = 0;
  uint64_t number = 0;
  uint64_t value_bytes = 0;
  std::array<uint32_t, 7> fill{};
  uint32_t crc = 0;
};
static_assert(sizeof(Line) == kValueLine);

constexpr size_t kSummed = offsetof(Line, crc);

// CRC-32 (polynomial 0xEDB88320), eight bytes at a time.
constexpr auto kTables = [] {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1)));
    tables[0][i] = crc;
  }
  for (uint32_t i = 0; i < 256; ++i) {
    for (size_t t = 1; t < 8; ++t) {
      tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xff];
    }
  }
  return tables;
}();

uint32_t Crc(const Line& line) {
  const auto* at = reinterpret_cast<const unsigned char*>(&line);
  uint32_t crc = ~0u;
  size_t left = kSummed;
  for (; left >= 8; left -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    word ^= crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i) crc ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; left > 0; --left, ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xff];
  return ~crc;
}

Line MakeLine(uint64_t key_hash, uint64_t version, uint64_t number, uint64_t value_bytes) {
  Line line{.key_hash = key_hash, .version = version, .number = number, .value_bytes = value_bytes};
  uint64_t state = key_hash ^ (version * 0x9E3779B97F4A7C15) ^ (number << 17) ^ value_bytes;
  for (uint32_t& word : line.fill) {
    state = state * 6364136223846793005 + 1442695040888963407;
    word = static_cast<uint32_t>(state >> 32);
  }
  line.crc = Crc(line);
  return line;
}

}  // namespace

void FillValue(uint64_t key_hash, uint64_t version, MutableByteSpan out) {
  for (uint64_t number = 0; number * kValueLine < out.size(); ++number) {
    const Line line = MakeLine(key_hash, version, number, out.size());
    const MutableByteSpan to = out.subspan(number * kValueLine);
    std::memcpy(to.data(), &line, std::min(to.size(), kValueLine));
  }
}

ValueVerdict CheckValue(uint64_t key_hash, ByteSpan bytes) {
  using Kind = ValueVerdict::Kind;
  ValueVerdict verdict;
  Line first;
  if (bytes.size() < sizeof(first)) return verdict;
  std::memcpy(&first, bytes.data(), sizeof(first));
  if (first.crc != Crc(first)) return verdict;
  const auto wrong = [&](Kind kind, size_t line) {
    return ValueVerdict{.kind = kind, .version = first.version, .bad_line = line};
  };
  if (first.key_hash != key_hash) return wrong(Kind::kWrongKey, 0);
  for (uint64_t number = 0; number * kValueLine < bytes.size(); ++number) {
    const Line want = MakeLine(key_hash, first.version, number, first.value_bytes);
    const ByteSpan got = bytes.subspan(number * kValueLine);
    if (std::memcmp(got.data(), &want, std::min(got.size(), kValueLine)) == 0) continue;
    Line line;
    if (got.size() < sizeof(line)) return wrong(Kind::kTorn, number);
    std::memcpy(&line, got.data(), sizeof(line));
    if (line.crc != Crc(line)) return wrong(Kind::kGarbage, number);
    return wrong(line.key_hash == key_hash ? Kind::kTorn : Kind::kWrongKey, number);
  }
  if (bytes.size() < first.value_bytes) return wrong(Kind::kShort, bytes.size() / kValueLine);
  if (bytes.size() > first.value_bytes) return wrong(Kind::kTorn, first.value_bytes / kValueLine);
  return {.kind = Kind::kOk, .version = first.version};
}

std::string ValueVerdict::Describe() const {
  switch (kind) {
    case Kind::kOk:
      return fmt::format("version {}", version);
    case Kind::kShort:
      return fmt::format("short: ends at line {}", bad_line);
    case Kind::kTorn:
      return fmt::format("torn: line {} does not belong to the first one", bad_line);
    case Kind::kWrongKey:
      return fmt::format("wrong key: line {} belongs to another key", bad_line);
    case Kind::kGarbage:
      break;
  }
  return fmt::format("garbage: line {} is no line of a value", bad_line);
}

}  // namespace penstock
