#include "common/base/status.h"

#include <fmt/format.h>

#include <array>

namespace penstock {
namespace {

struct CodeText {
  std::string_view name;
  std::string_view advice;
};

constexpr std::array<CodeText, kCodeCount> kCodes = {{
    {"OK", ""},
    {"MISS", "recompute it, then store it"},
    {"ALREADY_EXISTS", "nothing to do, or store with replace"},
    {"BUFFER_TOO_SMALL", "retry with a buffer of the size in the message"},
    {"FORMAT_MISMATCH", "treat as a miss; check that both sides use one namespace"},
    {"CHECKSUM_MISMATCH", "treat as a miss; if it repeats, check memory and links"},
    {"BUSY", "retry after the time in the message, or recompute"},
    {"ALL_PINNED", "release pins or reservations, or give the daemon more memory"},
    {"DEADLINE_EXCEEDED", "recompute, or allow more time"},
    {"CANCELLED", "nothing to do"},
    {"DISCONNECTED", "recompute; the client reconnects by itself"},
    {"FENCED", "match again to get a fresh handle"},
    {"INVALID_ARGUMENT", "correct the request"},
    {"VERSION_SKEW", "upgrade the older side"},
    {"TOO_LARGE", "split the request below the limit in the message"},
    {"BAD_BUFFER", "pass memory that is mapped, writable for reads, and registered"},
    {"UNIMPLEMENTED", "use another option, or a build that has it"},
    {"RESOURCE_EXHAUSTED", "raise the limit that the message names"},
    {"PERMISSION_DENIED", "ask the operator for access"},
    {"IO_ERROR", "look at the daemon's log for the device or socket"},
    {"INTERNAL", "report this as a bug"},
    {"CORRUPT_MESSAGE", "check that the other side speaks Penstock"},
}};

}  // namespace

std::string_view CodeName(Code code) {
  const auto i = static_cast<size_t>(code);
  return i < kCodes.size() ? kCodes[i].name : "UNKNOWN";
}

std::string_view CodeAdvice(Code code) {
  const auto i = static_cast<size_t>(code);
  return i < kCodes.size() ? kCodes[i].advice : "";
}

Code CodeFromWire(uint16_t number) {
  return number < kCodeCount ? static_cast<Code>(number) : Code::kInternal;
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  if (message_.empty()) return std::string(CodeName(code_));
  return fmt::format("{}: {}", CodeName(code_), message_);
}

Status Status::Annotate(std::string_view doing) const {
  if (ok()) return *this;
  return Status(code_,
                message_.empty() ? std::string(doing) : fmt::format("{}: {}", doing, message_));
}

}  // namespace penstock
