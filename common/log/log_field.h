// LogField: one named value of a log line, and how a line is put together.

#ifndef PENSTOCK_COMMON_LOG_LOG_FIELD_H_
#define PENSTOCK_COMMON_LOG_LOG_FIELD_H_

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace penstock {

enum class LogFormat : uint8_t { kText, kJson };  // key=value, or one JSON object a line.

// A view: names and texts must live until the line is written (a full expression is enough).
// There is deliberately no way to log bytes: payloads never reach a log.
class LogField {
 public:
  using Value = std::variant<std::string_view, std::string, int64_t, uint64_t, double, bool>;

  LogField(std::string_view name, std::string_view value) : name_(name), value_(value) {}
  LogField(std::string_view name, const char* value) : LogField(name, std::string_view(value)) {}
  LogField(std::string_view name, const std::string& value)
      : LogField(name, std::string_view(value)) {}
  LogField(std::string_view name, const Status& value) : name_(name), value_(value.ToString()) {}
  LogField(std::string_view name, double value) : name_(name), value_(value) {}
  template <std::same_as<bool> T>
  LogField(std::string_view name, T value) : name_(name), value_(value) {}
  template <std::signed_integral T>
  LogField(std::string_view name, T value) : name_(name), value_(static_cast<int64_t>(value)) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) LogField(std::string_view name, T value)
      : name_(name), value_(static_cast<uint64_t>(value)) {}
  LogField(std::string_view name, ByteSpan value) = delete;

  std::string_view name() const { return name_; }
  const Value& value() const { return value_; }

 private:
  std::string_view name_;
  Value value_;
};

// A line that never gets longer than it may. Values are escaped (a line is one line, whatever a
// value holds) and cut at kMaxValueBytes; a field that finds no room is left out, and the line then
// says so with truncated=true.
class LogLine {
 public:
  static constexpr size_t kMaxValueBytes = 512;
  static constexpr size_t kMinLineBytes = 64;

  LogLine(LogFormat format, size_t max_bytes);
  void Add(const LogField& field);
  // The line, without a newline. Call once.
  std::string Finish() &&;

 private:
  const LogFormat format_;
  const size_t max_bytes_;
  std::string line_;
  bool truncated_ = false;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_LOG_LOG_FIELD_H_
