// Structured logging to standard error, bounded in every direction.
//
//   PENSTOCK_LOG(kWarn, "store failed", {"op", "store"}, {"key", key.ToShortHex()},
//                {"node", node}, {"status", status}, {"elapsed_us", us});
//
// writes
//
//   ts=2030-01-02T03:04:05.678901Z level=warn msg="store failed" op=store ... src=put.cc:42
//
// The text is a literal that names the event; what varies goes into fields. The function that
// decides what an error means logs it; functions that pass it on do not.
//
// Volume: each call site may write a few lines at once and then a few a minute, and the process as
// a whole stays under 100 lines a minute whatever fails (LogLimits). What is held back is counted:
// the next line of that site says suppressed=N, and FlushSuppressedLogs() reports sites that fell
// silent. Debug lines have a limit of their own, since they are only on when somebody looks.
//
// Thread safety: everything may be called from any thread. A disabled or suppressed line takes no
// lock and builds no text. No line waits for standard error: a thread of the log's own writes it
// (common/log/log_writer.h), and lines that a reader who stands still leaves no room for are
// dropped and counted.

#ifndef PENSTOCK_COMMON_LOG_LOG_H_
#define PENSTOCK_COMMON_LOG_LOG_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string_view>

#include "common/base/deadline.h"
#include "common/base/status.h"
#include "common/log/log_field.h"

namespace penstock {

enum class LogLevel : uint8_t { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3 };

// "debug", "info", "warn", "error".
std::string_view LogLevelName(LogLevel level);
Result<LogLevel> ParseLogLevel(std::string_view name);

// `burst` lines at once, then `per_minute`, evenly spaced. At most burst + per_minute lines fall
// into any minute. REQUIRES: both > 0.
struct LogRate {
  uint32_t burst;
  uint32_t per_minute;
};

struct LogLimits {
  LogRate site{3, 6};                // One call site, except debug lines.
  LogRate process_errors{30, 15};    // All errors together, so that no warning crowds them out.
  LogRate process_others{30, 15};    // All warnings and infos together.
  LogRate process_debug{500, 6000};  // All debug lines together.
};

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
  LogLimits limits;
  size_t max_line_bytes = 2048;
  // Where finished lines go, without a newline; empty: standard error. Called from any thread, also
  // from several at once; must not log.
  std::function<void(LogLevel, std::string_view line)> sink;
  MonotonicTime (*clock)() = &MonotonicNow;
};

// Replaces the settings of the process. Without a call: warnings and errors, as text. Sites start
// with full buckets again.
void InitLogging(LogOptions options);

void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();

// Reports, within the limits, sites that hold back lines and may write again. The logger does this
// by itself now and then while lines are written; a daemon calls it from a timer so that the count
// of a site that fell silent is reported too. Returns how many sites it reported.
size_t FlushSuppressedLogs();

// One line with the number of lines that were never reported, outside the limits: at shutdown.
void ReportSuppressedAtExit();

// Waits until standard error has taken every line logged so far, at most `patience`: before a
// process ends by other means than exit(), which does it by itself. False if it did not.
bool FlushLog(Duration patience);
// Lines that standard error did not take, ever.
uint64_t LostLogLines();

// Ends the process (SIGABRT) because of a mistake of the program, with a last line that says which
// one. Lines logged before it are written first, if standard error takes them within a second.
[[noreturn]] void LogFatal(std::string_view what, const char* file, int line);

namespace internal {

// A rate limit in one word: the time at which the bucket would be full again.
class LogBucket {
 public:
  constexpr LogBucket() = default;
  bool TryTake(const LogRate& rate, MonotonicTime now);
  void Reset() { full_at_.store(INT64_MIN, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> full_at_{INT64_MIN};
};

// One PENSTOCK_LOG in the source. Static storage, constant initialised, never destroyed.
struct LogSite {
  constexpr LogSite(LogLevel lvl, const char* txt, const char* f, int l)
      : level(lvl), text(txt), file(f), line(l) {}

  const LogLevel level;
  const char* const text;
  const char* const file;
  const int line;
  LogBucket bucket;
  std::atomic<uint64_t> suppressed{0};
  std::atomic<bool> listed{false};
  LogSite* next = nullptr;  // In the list of sites that ever held back a line.
};

extern std::atomic<LogLevel> log_level;

inline bool LogEnabled(LogLevel level) {
  return level >= log_level.load(std::memory_order_relaxed);
}
// Takes from the buckets, or counts the line as suppressed.
bool LogAdmit(LogSite& site);
void LogWrite(LogSite& site, std::initializer_list<LogField> fields);

}  // namespace internal
}  // namespace penstock

// The fields are evaluated only when the line is written.
#define PENSTOCK_LOG(level_, text_, ...)                                                     \
  do {                                                                                       \
    if (::penstock::internal::LogEnabled(::penstock::LogLevel::level_)) {                    \
      static ::penstock::internal::LogSite penstock_log_site_(::penstock::LogLevel::level_,  \
                                                              "" text_, __FILE__, __LINE__); \
      if (::penstock::internal::LogAdmit(penstock_log_site_)) {                              \
        ::penstock::internal::LogWrite(penstock_log_site_, {__VA_ARGS__});                   \
      }                                                                                      \
    }                                                                                        \
  } while (false)

// Outside the limits, for the few lines that a start or a stop writes once (the effective settings,
// "serving", "stopped"). Never where a request, a peer or a timer can reach it.
#define PENSTOCK_LOG_ONCE_AT_START_OR_STOP(level_, text_, ...)                               \
  do {                                                                                       \
    if (::penstock::internal::LogEnabled(::penstock::LogLevel::level_)) {                    \
      static ::penstock::internal::LogSite penstock_log_site_(::penstock::LogLevel::level_,  \
                                                              "" text_, __FILE__, __LINE__); \
      ::penstock::internal::LogWrite(penstock_log_site_, {__VA_ARGS__});                     \
    }                                                                                        \
  } while (false)

#endif  // PENSTOCK_COMMON_LOG_LOG_H_
