#include "common/base/units.h"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <optional>
#include <span>

namespace penstock {
namespace {

struct Unit {
  std::string_view name;
  uint64_t factor;
};

constexpr uint64_t kKi = 1024, kK = 1000;
// Largest first; of equals, the one to print first.
constexpr Unit kByteUnits[] = {{"PiB", kKi* kKi* kKi* kKi* kKi},
                               {"PB", kK* kK* kK* kK* kK},
                               {"TiB", kKi* kKi* kKi* kKi},
                               {"TB", kK* kK* kK* kK},
                               {"GiB", kKi* kKi* kKi},
                               {"GB", kK* kK* kK},
                               {"MiB", kKi* kKi},
                               {"MB", kK* kK},
                               {"KiB", kKi},
                               {"KB", kK},
                               {"B", 1}};
constexpr Unit kTimeUnits[] = {{"h", 3600 * kK* kK* kK},
                               {"m", 60 * kK* kK* kK},
                               {"s", kK* kK* kK},
                               {"ms", kK* kK},
                               {"us", kK},
                               {"ns", 1}};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// digits [. digits] [e digits], as digits x 10^exponent.
struct Decimal {
  uint64_t digits = 0;
  int exponent = 0;
  std::string_view rest;  // What follows the number.
};

// Moves leading digits from `text` to `value`; false on overflow. `count` is how many there were.
bool TakeDigits(std::string_view& text, uint64_t& value, int& count) {
  for (count = 0; !text.empty() && IsDigit(text.front()); ++count, text.remove_prefix(1)) {
    if (value > (std::numeric_limits<uint64_t>::max() - 9) / 10) return false;
    value = value * 10 + static_cast<uint64_t>(text.front() - '0');
  }
  return true;
}

std::optional<Decimal> TakeDecimal(std::string_view text) {
  Decimal d;
  int count = 0;
  if (!TakeDigits(text, d.digits, count) || count == 0) return std::nullopt;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (!TakeDigits(text, d.digits, count) || count == 0) return std::nullopt;
    d.exponent = -count;
  }
  if (text.size() >= 2 && text.front() == 'e' && IsDigit(text[1])) {
    text.remove_prefix(1);
    uint64_t exponent = 0;
    if (!TakeDigits(text, exponent, count) || exponent > 30) return std::nullopt;
    d.exponent += static_cast<int>(exponent);
  }
  d.rest = text;
  return d;
}

// The number times `factor`, when that is whole and below 2^63.
std::optional<uint64_t> Multiply(Decimal d, uint64_t factor) {
  constexpr unsigned __int128 kLimit = static_cast<unsigned __int128>(1) << 63;
  unsigned __int128 value = static_cast<unsigned __int128>(d.digits) * factor;
  for (; d.exponent < 0; ++d.exponent) {
    if (value % 10 != 0) return std::nullopt;
    value /= 10;
  }
  for (; d.exponent > 0; --d.exponent) {
    if (value >= kLimit) return std::nullopt;
    value *= 10;
  }
  if (value >= kLimit) return std::nullopt;
  return static_cast<uint64_t>(value);
}

const Unit* FindUnit(std::span<const Unit> units, std::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

// "GB", "gb", "G", "Gi" -> "GB or GiB".
std::string MeantByteUnit(std::string_view name) {
  if (name.empty() || name.size() > 3) return "";
  const char upper = static_cast<char>(name.front() & ~0x20);
  if (std::string_view("KMGTP").find(upper) == std::string_view::npos) return "";
  return fmt::format("; did you mean {}B (powers of 1000) or {}iB (powers of 1024)?", upper, upper);
}

Status Bad(std::string_view want, std::string_view hint = "") {
  return Status(Code::kInvalidArgument, fmt::format("want {}{}", want, hint));
}

std::string FormatExact(std::span<const Unit> units, uint64_t value, std::string_view bare) {
  if (value == 0) return "0";
  for (const Unit& unit : units) {
    if (value % unit.factor != 0) continue;
    return fmt::format("{}{}", value / unit.factor, unit.factor == 1 ? bare : unit.name);
  }
  std::abort();  // The last factor is 1.
}

// Three digits of value / factor.
std::string Rough(uint64_t value, const Unit& unit) {
  const double number = static_cast<double>(value) / static_cast<double>(unit.factor);
  if (unit.factor == 1) return fmt::format("{} {}", value, unit.name);
  const int decimals = number < 9.995 ? 2 : number < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", number, decimals, unit.name);
}

}  // namespace

Result<uint64_t> ParseBytes(std::string_view text) {
  constexpr std::string_view kWant = "a size such as 4096, 512MB or 4GiB";
  std::optional<Decimal> number = TakeDecimal(text);
  if (!number) return Bad(kWant);
  std::string_view name = number->rest;
  if (name.starts_with(' ') && name.size() > 1) name.remove_prefix(1);
  const Unit* unit = name.empty() ? FindUnit(kByteUnits, "B") : FindUnit(kByteUnits, name);
  if (unit == nullptr) return Bad(kWant, MeantByteUnit(name));
  const std::optional<uint64_t> bytes = Multiply(*number, unit->factor);
  if (!bytes) return Bad(kWant, ", a whole number of bytes below 2^63");
  return *bytes;
}

Result<Duration> ParseDuration(std::string_view text) {
  constexpr std::string_view kWant = "a duration such as 500ms, 10s or 2m";
  std::optional<Decimal> number = TakeDecimal(text);
  if (!number) return Bad(kWant);
  std::string_view name = number->rest;
  if (name.empty() && number->digits == 0) return Duration::zero();
  if (name.empty()) return Bad(kWant, "; the unit is missing (ns, us, ms, s, m or h)");
  if (name.starts_with(' ')) name.remove_prefix(1);
  const Unit* unit = FindUnit(kTimeUnits, name);
  if (unit == nullptr) return Bad(kWant, " (ns, us, ms, s, m or h)");
  const std::optional<uint64_t> nanos = Multiply(*number, unit->factor);
  if (!nanos) return Bad(kWant, ", a whole number of nanoseconds below 2^63");
  return Duration(static_cast<int64_t>(*nanos));
}

std::string FormatBytes(uint64_t bytes) { return FormatExact(kByteUnits, bytes, ""); }

std::string FormatDuration(Duration duration) {
  if (duration < Duration::zero()) return "-" + FormatDuration(-duration);
  return FormatExact(kTimeUnits, static_cast<uint64_t>(duration.count()), "ns");
}

std::string RoughBytes(uint64_t bytes) {
  for (const Unit& unit : kByteUnits) {
    if (unit.name.size() == 2) continue;  // Powers of 1000.
    if (bytes >= unit.factor) return Rough(bytes, unit);
  }
  return "0 B";
}

std::string RoughDuration(Duration duration) {
  if (duration < Duration::zero()) return "-" + RoughDuration(-duration);
  const auto nanos = static_cast<uint64_t>(duration.count());
  for (const Unit& unit : kTimeUnits) {
    if (nanos >= unit.factor) return Rough(nanos, unit);
  }
  return "0 s";
}

}  // namespace penstock
