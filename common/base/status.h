// Status: how every call in Penstock says what happened.
//
// A status is a stable code (the same number in C++, in C, in Python, on the wire and in metrics),
// a human sentence, and, from the code alone, what the caller can do about it. Outcomes that a
// caller must be able to tell apart (a miss, an empty value, an error) never share a code.
//
// Thread safety: like std::string. An OK status holds no memory.

#ifndef PENSTOCK_COMMON_BASE_STATUS_H_
#define PENSTOCK_COMMON_BASE_STATUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace penstock {

// Numbers are part of the wire format and of the C ABI: append, never renumber
// (docs/formats/wire.md pins them, tests/unit/status_test.cc holds the golden table).
enum class Code : uint16_t {
  kOk = 0,
  kMiss = 1,                // Not stored (or evicted). Recompute.
  kAlreadyExists = 2,       // A committed chunk is there already; yours was not needed.
  kBufferTooSmall = 3,      // The value is longer than the destination.
  kFormatMismatch = 4,      // Stored under another namespace or tag: treated as a miss.
  kChecksumMismatch = 5,    // Bytes differ from what was committed. Never served.
  kBusy = 6,                // Back-pressure: retry after the time in the message.
  kAllPinned = 7,           // The tier is full and everything in it is pinned or in use.
  kDeadlineExceeded = 8,    // The caller's patience ended first.
  kCancelled = 9,           // The caller cancelled.
  kDisconnected = 10,       // The daemon cannot be reached, or went away during the call.
  kFenced = 11,             // A handle of a former incarnation, or one that expired.
  kInvalidArgument = 12,    // The request itself is wrong.
  kVersionSkew = 13,        // The two sides speak no common version.
  kTooLarge = 14,           // Over a limit that the daemon states.
  kBadBuffer = 15,          // Memory that is not mapped, not writable, or not registered.
  kUnimplemented = 16,      // Known, but this build or peer does not do it.
  kResourceExhausted = 17,  // The operating system refused memory, descriptors or threads.
  kPermissionDenied = 18,   // The tenant may not do this.
  kIoError = 19,            // A device or socket failed.
  kInternal = 20,           // A bug in Penstock.
  kCorruptMessage = 21,     // A message or record that does not parse.
};
inline constexpr uint16_t kCodeCount = 22;

// "MISS", "ALREADY_EXISTS", ...; "UNKNOWN" for a number that this build does not know.
std::string_view CodeName(Code code);
// One sentence: what the caller can do. Empty for OK.
std::string_view CodeAdvice(Code code);
// A code from the wire: unknown numbers become kInternal, so that newer peers stay readable.
Code CodeFromWire(uint16_t number);

class [[nodiscard]] Status {
 public:
  Status() = default;
  explicit Status(Code code) : code_(code) {}
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // "BUSY: 64 requests are in flight (retry in 5 ms)"
  std::string ToString() const;
  // The same code with `doing` in front of the message: what was being attempted.
  Status Annotate(std::string_view doing) const;

  friend bool operator==(const Status& a, const Status& b) { return a.code_ == b.code_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// A T, or the reason why there is none. Reading the value of an error aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<1>, std::move(value)) {}         // NOLINT: implicit
  Result(Status status) : state_(std::in_place_index<0>, std::move(status)) {}  // NOLINT: implicit

  bool ok() const { return state_.index() == 1; }
  Status status() const { return ok() ? Status() : std::get<0>(state_); }
  T& value() & { return std::get<1>(state_); }
  const T& value() const& { return std::get<1>(state_); }
  T&& value() && { return std::get<1>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<Status, T> state_;
};

}  // namespace penstock

#define PENSTOCK_CONCAT_INNER(a, b) a##b
#define PENSTOCK_CONCAT(a, b) PENSTOCK_CONCAT_INNER(a, b)

#define PENSTOCK_RETURN_IF_ERROR(expr)                   \
  do {                                                   \
    ::penstock::Status penstock_status_ = (expr);        \
    if (!penstock_status_.ok()) return penstock_status_; \
  } while (false)

// PENSTOCK_ASSIGN_OR_RETURN(auto x, F()): x = the value, or return the error.
#define PENSTOCK_ASSIGN_OR_RETURN(lhs, expr) \
  PENSTOCK_ASSIGN_OR_RETURN_INNER(PENSTOCK_CONCAT(penstock_result_, __LINE__), lhs, expr)
#define PENSTOCK_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                    \
  if (!tmp.ok()) return tmp.status();                   \
  lhs = std::move(tmp).value()

#endif  // PENSTOCK_COMMON_BASE_STATUS_H_
