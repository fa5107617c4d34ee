#include "common/log/log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/sink.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "common/base/mutex.h"
#include "common/log/log_writer.h"

namespace penstock {
namespace internal {

std::atomic<LogLevel> log_level{LogLevel::kWarn};

bool LogBucket::TryTake(const LogRate& rate, MonotonicTime now_point) {
  const int64_t now = now_point.time_since_epoch().count();
  const int64_t interval = int64_t{60'000'000'000} / rate.per_minute;
  const int64_t depth = interval * rate.burst;
  int64_t full_at = full_at_.load(std::memory_order_relaxed);
  while (true) {
    const int64_t next = std::max(full_at, now) + interval;
    if (next - now > depth) return false;
    if (full_at_.compare_exchange_weak(full_at, next, std::memory_order_relaxed)) return true;
  }
}

}  // namespace internal

namespace {

using internal::LogBucket;
using internal::LogSite;

constexpr auto kFlushInterval = std::chrono::seconds(10);
// Lines that wait for standard error to take them.
constexpr size_t kMaxQueuedBytes = size_t{1} << 20;
// How long an ending process waits for that.
constexpr auto kLastFlush = std::chrono::seconds(1);

// A LogRate that can be read while it is replaced.
class AtomicRate {
 public:
  explicit AtomicRate(LogRate rate) { Set(rate); }
  void Set(LogRate rate) {
    constexpr uint32_t kMost = 1'000'000;  // Keeps the arithmetic of buckets far from overflow.
    const uint64_t burst = std::clamp<uint32_t>(rate.burst, 1, kMost);
    word_.store(burst << 32 | std::clamp<uint32_t>(rate.per_minute, 1, kMost),
                std::memory_order_relaxed);
  }
  LogRate Get() const {
    const uint64_t word = word_.load(std::memory_order_relaxed);
    return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word)};
  }

 private:
  std::atomic<uint64_t> word_;
};

struct ProcessBucket {
  AtomicRate rate;
  LogBucket bucket{};
};

// What every line asks, without a lock.
struct Limits {
  std::atomic<MonotonicTime (*)()> clock{&MonotonicNow};
  AtomicRate site{LogLimits().site};
  ProcessBucket errors{AtomicRate(LogLimits().process_errors)};
  ProcessBucket others{AtomicRate(LogLimits().process_others)};
  ProcessBucket debug{AtomicRate(LogLimits().process_debug)};
  std::atomic<LogSite*> sites{nullptr};  // Every site that was ever reached.
  std::atomic<int64_t> flush_at{INT64_MIN};

  MonotonicTime Now() const { return clock.load(std::memory_order_relaxed)(); }
};

// Neither is ever destroyed: other threads may log while the process exits.
Limits& TheLimits() {
  static auto* const limits = new Limits;
  return *limits;
}

LogWriter& StandardError();

// Never waits for standard error.
class StderrSink : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& message) override {
    StandardError().Push(std::string(message.payload.data(), message.payload.size()));
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}
};

// Hands lines to a function.
class FunctionSink : public spdlog::sinks::sink {
 public:
  explicit FunctionSink(std::function<void(LogLevel, std::string_view)> function)
      : function_(std::move(function)) {}

  void log(const spdlog::details::log_msg& message) override {
    const LogLevel level = message.level == spdlog::level::err    ? LogLevel::kError
                           : message.level == spdlog::level::warn ? LogLevel::kWarn
                           : message.level == spdlog::level::info ? LogLevel::kInfo
                                                                  : LogLevel::kDebug;
    function_(level, std::string_view(message.payload.data(), message.payload.size()));
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

 private:
  const std::function<void(LogLevel, std::string_view)> function_;
};

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

// What only written lines need.
class Output {
 public:
  Output() { Replace(LogOptions()); }

  void Replace(const LogOptions& options) ABSL_LOCKS_EXCLUDED(mu_) {
    spdlog::sink_ptr sink;
    if (options.sink) {
      sink = std::make_shared<FunctionSink>(options.sink);
    } else {
      sink = std::make_shared<StderrSink>();
    }
    auto logger = std::make_shared<spdlog::logger>("penstock", std::move(sink));
    logger->set_pattern("%v");
    logger->set_level(spdlog::level::trace);  // LogEnabled() has decided.
    MutexLock lock(mu_);
    logger_ = std::move(logger);
    format_ = options.format;
    max_line_bytes_ = options.max_line_bytes;
  }

  LogLine NewLine() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return LogLine(format_, max_line_bytes_);
  }

  void Write(LogLevel level, const std::string& line) ABSL_LOCKS_EXCLUDED(mu_) {
    std::shared_ptr<spdlog::logger> logger;
    {
      MutexLock lock(mu_);
      logger = logger_;
    }
    // Outside the lock: a sink of the program's own may take its time.
    logger->log(SpdlogLevel(level), spdlog::string_view_t(line.data(), line.size()));
  }

 private:
  Mutex mu_;
  std::shared_ptr<spdlog::logger> logger_ ABSL_GUARDED_BY(mu_);
  LogFormat format_ ABSL_GUARDED_BY(mu_) = LogFormat::kText;
  size_t max_line_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

Output& TheOutput() {
  static auto* const output = new Output;
  return *output;
}

void EnsureListed(LogSite& site) {
  if (site.listed.load(std::memory_order_acquire)) return;
  if (site.listed.exchange(true)) return;
  std::atomic<LogSite*>& sites = TheLimits().sites;
  site.next = sites.load(std::memory_order_relaxed);
  while (!sites.compare_exchange_weak(site.next, &site, std::memory_order_release,
                                      std::memory_order_relaxed)) {
  }
}

bool TryTake(LogSite& site, MonotonicTime now) {
  Limits& limits = TheLimits();
  if (site.level == LogLevel::kDebug)
    return limits.debug.bucket.TryTake(limits.debug.rate.Get(), now);
  // The site first: what one site floods must not empty the bucket of all.
  if (!site.bucket.TryTake(limits.site.Get(), now)) return false;
  ProcessBucket& all = site.level == LogLevel::kError ? limits.errors : limits.others;
  return all.bucket.TryTake(all.rate.Get(), now);
}

std::string Timestamp() {
  using namespace std::chrono;  // NOLINT: one function
  const auto now = time_point_cast<microseconds>(system_clock::now());
  const auto second = floor<seconds>(now);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z", fmt::gmtime(system_clock::to_time_t(second)),
                     (now - second).count());
}

// One line: time, level and text, then `fields`, then where it came from.
void WriteLine(LogLevel level, std::string_view text, const LogSite* site, uint64_t suppressed,
               std::initializer_list<LogField> fields) {
  LogLine line = TheOutput().NewLine();
  line.Add({"ts", Timestamp()});
  line.Add({"level", LogLevelName(level)});
  line.Add({"msg", text});
  if (suppressed > 0) line.Add({"suppressed", suppressed});
  for (const LogField& field : fields) line.Add(field);
  if (site != nullptr) {
    const std::string_view path = site->file;
    line.Add({"src", fmt::format("{}:{}", path.substr(path.rfind('/') + 1), site->line)});
  }
  TheOutput().Write(level, std::move(line).Finish());
}

std::string LostLine(uint64_t lost) {
  LogLine line = TheOutput().NewLine();
  line.Add({"ts", Timestamp()});
  line.Add({"level", LogLevelName(LogLevel::kWarn)});
  line.Add({"msg", "lines lost: standard error did not take them in time"});
  line.Add({"lost", lost});
  return std::move(line).Finish();
}

// Of this process; null before its first line. Never destroyed either.
std::atomic<LogWriter*> standard_error{nullptr};

LogWriter* StartedStandardError() {
  LogWriter* const writer = standard_error.load(std::memory_order_acquire);
  return writer != nullptr && writer->process() == getpid() ? writer : nullptr;
}

LogWriter& StandardError() {
  if (LogWriter* const writer = StartedStandardError()) return *writer;
  // The first line of the process, perhaps a child whose parent's writer is left alone. The thread
  // that starts ours says for which process: a child that is forked in between must not wait for
  // it.
  static std::atomic<pid_t> starting{0};
  const pid_t self = getpid();
  pid_t holder = starting.load(std::memory_order_acquire);
  while (holder == self ||
         !starting.compare_exchange_weak(holder, self, std::memory_order_acquire)) {
    if (LogWriter* const writer = StartedStandardError()) return *writer;
    holder = starting.load(std::memory_order_acquire);
  }
  if (StartedStandardError() == nullptr) {
    // What exit() finds still waiting is written then.
    static std::atomic<bool> registered{false};
    if (!registered.exchange(true)) std::atexit([] { FlushLog(kLastFlush); });
    standard_error.store(new LogWriter(STDERR_FILENO, kMaxQueuedBytes, LostLine),
                         std::memory_order_release);
  }
  starting.store(0, std::memory_order_release);
  return *StartedStandardError();
}

// True once in kFlushInterval.
bool FlushIsDue() {
  Limits& limits = TheLimits();
  const int64_t now = limits.Now().time_since_epoch().count();
  int64_t due = limits.flush_at.load(std::memory_order_relaxed);
  return now >= due && limits.flush_at.compare_exchange_strong(
                           due, now + std::chrono::nanoseconds(kFlushInterval).count(),
                           std::memory_order_relaxed);
}

}  // namespace

namespace internal {

bool LogAdmit(LogSite& site) {
  EnsureListed(site);
  if (TryTake(site, TheLimits().Now())) return true;
  site.suppressed.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void LogWrite(LogSite& site, std::initializer_list<LogField> fields) {
  const uint64_t suppressed = site.suppressed.exchange(0, std::memory_order_relaxed);
  WriteLine(site.level, site.text, &site, suppressed, fields);
  if (FlushIsDue()) FlushSuppressedLogs();
}

}  // namespace internal

std::string_view LogLevelName(LogLevel level) {
  constexpr std::string_view kNames[] = {"debug", "info", "warn", "error"};
  return kNames[static_cast<size_t>(level) & 3];
}

Result<LogLevel> ParseLogLevel(std::string_view name) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError}) {
    if (name == LogLevelName(level)) return level;
  }
  return Status(Code::kInvalidArgument,
                fmt::format("log level \"{}\": want debug, info, warn or error", name));
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): called once.
void InitLogging(LogOptions options) {
  TheOutput().Replace(options);
  Limits& limits = TheLimits();
  limits.clock.store(options.clock, std::memory_order_relaxed);
  limits.site.Set(options.limits.site);
  limits.errors.rate.Set(options.limits.process_errors);
  limits.others.rate.Set(options.limits.process_others);
  limits.debug.rate.Set(options.limits.process_debug);
  limits.flush_at.store(INT64_MIN, std::memory_order_relaxed);
  for (ProcessBucket* all : {&limits.errors, &limits.others, &limits.debug}) all->bucket.Reset();
  for (LogSite* site = limits.sites.load(std::memory_order_acquire); site != nullptr;
       site = site->next) {
    site->bucket.Reset();
    site->suppressed.store(0, std::memory_order_relaxed);
  }
  SetLogLevel(options.level);
}

void SetLogLevel(LogLevel level) { internal::log_level.store(level, std::memory_order_relaxed); }
LogLevel GetLogLevel() { return internal::log_level.load(std::memory_order_relaxed); }

size_t FlushSuppressedLogs() {
  Limits& limits = TheLimits();
  size_t reported = 0;
  for (LogSite* site = limits.sites.load(std::memory_order_acquire); site != nullptr;
       site = site->next) {
    if (site->suppressed.load(std::memory_order_relaxed) == 0) continue;
    if (!TryTake(*site, limits.Now())) continue;
    const uint64_t count = site->suppressed.exchange(0, std::memory_order_relaxed);
    if (count == 0) continue;
    WriteLine(site->level, "lines suppressed", site, count, {{"like", site->text}});
    ++reported;
  }
  return reported;
}

bool FlushLog(Duration patience) {
  LogWriter* const writer = StartedStandardError();
  return writer == nullptr || writer->Flush(Deadline::After(patience));
}

void LogFatal(std::string_view what, const char* file, int line) {
  const internal::LogSite site(LogLevel::kError, "fatal", file, line);
  WriteLine(LogLevel::kError, "fatal", &site, 0, {{"what", what}});
  FlushLog(kLastFlush);
  std::abort();
}

uint64_t LostLogLines() {
  const LogWriter* const writer = StartedStandardError();
  return writer == nullptr ? 0 : writer->lost();
}

void ReportSuppressedAtExit() {
  uint64_t lines = 0, sites = 0;
  for (LogSite* site = TheLimits().sites.load(std::memory_order_acquire); site != nullptr;
       site = site->next) {
    const uint64_t count = site->suppressed.exchange(0, std::memory_order_relaxed);
    lines += count;
    sites += count > 0 ? 1 : 0;
  }
  if (lines == 0) return;
  WriteLine(LogLevel::kWarn, "lines suppressed", nullptr, lines, {{"sites", sites}});
}

}  // namespace penstock
