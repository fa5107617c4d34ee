#include "common/log/log_field.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>

#include "common/base/utf8.h"

namespace penstock {
namespace {

constexpr std::string_view kCut = "...";

// Printable text as it is, everything else as escapes that are valid in JSON.
void AppendEscaped(std::string_view text, std::string& out) {
  const bool cut = text.size() > LogLine::kMaxValueBytes;
  if (cut) text = text.substr(0, LogLine::kMaxValueBytes);
  while (!text.empty()) {
    const char c = text.front();
    const size_t length = Utf8Length(text);
    if (length > 0) {
      if (c == '"' || c == '\\') out += '\\';
      out += text.substr(0, length);
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<uint8_t>(c) < 0x80) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
    } else {
      out += "\\ufffd";  // Not UTF-8.
    }
    text.remove_prefix(std::max<size_t>(1, length));
  }
  if (cut) out += kCut;
}

// In key=value lines, a text that reads unambiguously without quotes has none.
bool IsPlain(std::string_view text) {
  return !text.empty() && text.size() <= LogLine::kMaxValueBytes &&
         std::ranges::all_of(
             text, [](char c) { return c > ' ' && c < 0x7F && c != '"' && c != '\\' && c != '='; });
}

void AppendText(LogFormat format, std::string_view text, std::string& out) {
  if (format == LogFormat::kText && IsPlain(text)) {
    out += text;
    return;
  }
  out += '"';
  AppendEscaped(text, out);
  out += '"';
}

void AppendValue(LogFormat format, const LogField::Value& value, std::string& out) {
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_convertible_v<T, std::string_view>) {
          AppendText(format, v, out);
        } else if constexpr (std::is_same_v<T, double>) {
          const std::string_view quote = std::isfinite(v) ? "" : "\"";  // JSON has no infinities.
          fmt::format_to(std::back_inserter(out), "{}{:.6g}{}", quote, v, quote);
        } else {
          fmt::format_to(std::back_inserter(out), "{}", v);
        }
      },
      value);
}

std::string_view TruncatedMark(LogFormat format) {
  return format == LogFormat::kJson ? ",\"truncated\":true}" : " truncated=true";
}

}  // namespace

LogLine::LogLine(LogFormat format, size_t max_bytes)
    : format_(format), max_bytes_(std::max(max_bytes, kMinLineBytes)) {
  if (format_ == LogFormat::kJson) line_.push_back('{');
}

void LogLine::Add(const LogField& field) {
  const size_t before = line_.size();
  if (format_ == LogFormat::kJson) {
    if (before > 1) line_ += ',';
    line_ += '"';
    AppendEscaped(field.name(), line_);
    line_ += "\":";
  } else {
    if (before > 0) line_ += ' ';
    line_ += field.name();
    line_ += '=';
  }
  AppendValue(format_, field.value(), line_);
  if (line_.size() + TruncatedMark(format_).size() > max_bytes_) {
    line_.resize(before);
    truncated_ = true;
  }
}

std::string LogLine::Finish() && {
  if (truncated_) {
    line_ += TruncatedMark(format_);
  } else if (format_ == LogFormat::kJson) {
    line_ += '}';
  }
  if (line_.starts_with("{,")) line_.erase(1, 1);  // Every field was too long.
  return std::move(line_);
}

}  // namespace penstock
