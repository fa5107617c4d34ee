// bench: load with an oracle. Random sizes, threads, evictions and kills; every delivered byte is
// checked, and memory and descriptors are watched.

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <thread>

#include "client/cli/bench/child_daemon.h"
#include "client/cli/bench/growth.h"
#include "client/cli/bench/workload.h"
#include "client/cli/commands.h"
#include "client/cli/self_describing.h"
#include "common/base/random.h"
#include "common/base/units.h"

namespace penstock::cli {
namespace {

struct BenchOptions {
  WorkloadOptions work;
  std::string duration = "10s";
  std::string sizes = "64B..1MiB";
  std::string kill_every;    // Empty: never.
  std::string kill_command;  // Instead of killing the bench's own daemon.
  std::string kill_within = "0s";
  bool with_daemon = false;
  ChildDaemon::Options daemon;
  std::string deadline = "2s";
};

struct Plan {
  Duration duration{}, kill_every{};
};

Result<Plan> Check(BenchOptions& options) {
  Plan plan;
  PENSTOCK_ASSIGN_OR_RETURN(plan.duration, ParseDuration(options.duration));
  PENSTOCK_ASSIGN_OR_RETURN(options.work.deadline, ParseDuration(options.deadline));
  if (!options.kill_every.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(plan.kill_every, ParseDuration(options.kill_every));
    if (!options.with_daemon && options.kill_command.empty()) {
      return Status(Code::kInvalidArgument, "--kill-every needs --with-daemon or --kill-command");
    }
  }
  const size_t dots = options.sizes.find("..");
  PENSTOCK_ASSIGN_OR_RETURN(options.work.min_bytes, ParseBytes(options.sizes.substr(0, dots)));
  options.work.max_bytes = options.work.min_bytes;
  if (dots != std::string::npos) {
    PENSTOCK_ASSIGN_OR_RETURN(options.work.max_bytes, ParseBytes(options.sizes.substr(dots + 2)));
  }
  if (options.work.min_bytes < kMinValueBytes || options.work.max_bytes < options.work.min_bytes) {
    return Status(Code::kInvalidArgument,
                  fmt::format("--sizes: at least {} bytes, the smaller one first", kMinValueBytes));
  }
  if (options.work.keys < options.work.threads) {
    return Status(Code::kInvalidArgument, "--keys: at least one a thread");
  }
  return plan;
}

// Waits until `until`, or until `stop` is set and announced.
class Stopper {
 public:
  bool WaitUntil(MonotonicTime until) {
    MutexLock lock(mu_);
    while (!stop_ && MonotonicNow() < until) changed_.WaitUntil(mu_, until);
    return stop_;
  }
  void Stop() {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.SignalAll();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
};

struct Kills {
  uint64_t count = 0;
  Status failure;
};

// Kills at random moments, on average every `every`.
void KillNowAndThen(const BenchOptions& options, Duration every, ChildDaemon* daemon,
                    Stopper& stopper, Kills& kills) {
  std::mt19937_64 random(options.work.seed);
  std::exponential_distribution<double> pause(1.0 / static_cast<double>(every.count()));
  while (!stopper.WaitUntil(MonotonicNow() + Duration(static_cast<int64_t>(pause(random))))) {
    if (options.kill_command.empty()) {
      kills.failure = daemon->KillAndRestart();
    } else if (const int rc = std::system(options.kill_command.c_str()); rc != 0) {
      kills.failure = Status(Code::kIoError, fmt::format("--kill-command: exit status {}",
                                                         WIFEXITED(rc) ? WEXITSTATUS(rc) : rc));
    }
    if (!kills.failure.ok()) return;
    ++kills.count;
  }
}

Json LatencyJson(const Latency& latency) {
  return {{"count", latency.count()},
          {"p50_us", latency.Micros(0.5)},
          {"p99_us", latency.Micros(0.99)},
          {"p999_us", latency.Micros(0.999)}};
}

std::string LatencyText(const char* name, const Latency& latency) {
  return fmt::format("{}  {:>9} operations, p50 {:.0f} us, p99 {:.0f} us, p99.9 {:.0f} us\n", name,
                     latency.count(), latency.Micros(0.5), latency.Micros(0.99),
                     latency.Micros(0.999));
}

Json LineJson(const Growth::Line& line, const char* slope) {
  return {{"first", line.first}, {"last", line.last}, {"most", line.most}, {slope, line.slope}};
}

int Report(const Context& context, const Workload& workload, const Growth& growth,
           const Kills& kills, const ClientStats& stats, double seconds) {
  const WorkloadTotals totals = workload.totals();
  const double ops = static_cast<double>(totals.operations) / seconds;
  const double bytes = static_cast<double>(totals.fetched_bytes + totals.stored_bytes);
  Json errors = Json::object();
  std::string error_text;
  for (size_t i = 0; i < totals.errors.size(); ++i) {
    if (totals.errors[i] == 0) continue;
    const std::string name(CodeName(static_cast<Code>(i)));
    errors[name] = totals.errors[i];
    error_text += fmt::format("{}{} {}", error_text.empty() ? "" : ", ", name, totals.errors[i]);
  }
  const bool worked = totals.hits + totals.stored > 0;
  const bool lost = !stats.connected;
  const bool ok = totals.wrong == 0 && worked && !lost && kills.failure.ok();
  Json result = {{"ok", ok},
                 {"code", totals.wrong > 0 ? "CHECKSUM_MISMATCH"
                          : ok             ? "OK"
                          : lost           ? "DISCONNECTED"
                                           : "FAIL"},
                 {"wrong", totals.wrong},
                 {"seconds", seconds},
                 {"operations", totals.operations},
                 {"ops_per_s", ops},
                 {"gb_per_s", bytes / seconds / 1e9},
                 {"hits", totals.hits},
                 {"misses", totals.misses},
                 {"stored", totals.stored},
                 {"cancelled", totals.cancelled},
                 {"fetched_bytes", totals.fetched_bytes},
                 {"stored_bytes", totals.stored_bytes},
                 {"errors", errors},
                 {"fetch", LatencyJson(totals.fetch)},
                 {"store", LatencyJson(totals.store)},
                 {"kills", kills.count},
                 {"connects", stats.connects},
                 {"daemon_restarts", stats.daemon_restarts},
                 {"rss", LineJson(growth.Memory(), "bytes_per_operation")},
                 {"descriptors", LineJson(growth.Descriptors(), "per_operation")}};
  result["complaints"] = workload.complaints();
  const Growth::Line rss = growth.Memory(), fds = growth.Descriptors();
  std::string text = fmt::format(
      "{:.1f} s, {} operations, {:.0f} a second, {:.2f} GB/s\n"
      "{} hits, {} misses, {} stored, {} cancelled, {} kills, {} restarts seen\n",
      seconds, totals.operations, ops, bytes / seconds / 1e9, totals.hits, totals.misses,
      totals.stored, totals.cancelled, kills.count, stats.daemon_restarts);
  text += LatencyText("fetch", totals.fetch) + LatencyText("store", totals.store);
  text += fmt::format("errors  {}\nmemory  {} at first, {} at last, {:+.3f} bytes an operation\n",
                      error_text.empty() ? "none" : error_text, RoughBytes(rss.first),
                      RoughBytes(rss.last), rss.slope);
  text += fmt::format("descriptors  {} at first, {} at last, {} at most\nWRONG BYTES  {}",
                      fds.first, fds.last, fds.most, totals.wrong);
  for (const std::string& complaint : workload.complaints()) text += "\n  " + complaint;
  context.Print(result, text);
  if (totals.wrong > 0) return kExitWrongBytes;
  if (!kills.failure.ok()) return context.Fail(kills.failure);
  if (lost) {
    std::fprintf(stderr, "penstock: the daemon was gone at the end: %s\n",
                 stats.last_error.c_str());
    return kExitUnreachable;
  }
  return worked ? kExitOk : kExitFailure;
}

int Bench(Context& context, BenchOptions options) {
  const auto plan = Check(options);
  if (!plan.ok()) return context.Fail(plan.status());
  std::unique_ptr<ChildDaemon> daemon;
  ClientOptions client_options;
  client_options.address = context.settings().address;
  if (options.with_daemon) {
    if (context.settings().wire == "ucx") options.daemon.more.emplace_back("--wires=ucx");
    auto started = ChildDaemon::Start(options.daemon);
    if (!started.ok()) return context.Fail(started.status());
    daemon = std::move(started).value();
    client_options.address = daemon->address();
  }
  client_options.wire = context.settings().wire;
  client_options.tenant = context.settings().tenant;
  client_options.name = "penstock bench";
  auto client = Client::Create(client_options);
  if (!client.ok()) return context.Fail(client.status());
  if (!(*client)->WaitConnected(Deadline::After(context.settings().timeout))) {
    return context.Fail(Status(Code::kDisconnected, (*client)->stats().last_error));
  }
  auto descriptor = context.Descriptor();
  if (!descriptor.ok()) return context.Fail(descriptor.status());
  // Of this run alone: what earlier ones left behind, and others store now, is none of its values.
  descriptor->extension["bench_run"] = fmt::format("{:016x}", NewIncarnation());
  auto ns = (*client)->OpenNamespace(*descriptor);
  if (!ns.ok()) return context.Fail(ns.status());

  Workload workload(options.work, **client, *ns);
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  const MonotonicTime start = MonotonicNow();
  for (uint32_t i = 0; i < options.work.threads; ++i) {
    threads.emplace_back([&workload, &stop, i] { workload.Run(i, stop); });
  }
  Stopper stopper;
  Kills kills;
  std::thread killer;
  if (plan->kill_every > Duration::zero()) {
    killer = std::thread(
        [&] { KillNowAndThen(options, plan->kill_every, daemon.get(), stopper, kills); });
  }
  Growth growth;
  Progress progress;
  const auto elapsed = [&] {
    return std::chrono::duration<double>(MonotonicNow() - start).count();
  };
  for (int second = 1; MonotonicNow() < start + plan->duration; ++second) {
    growth.Sample(static_cast<double>(workload.operations().load()));
    progress.Show(fmt::format("{:.0f} s of {}, {} operations, {} moved, {} wrong", elapsed(),
                              options.duration, workload.operations().load(),
                              RoughBytes(workload.bytes().load()), workload.wrong().load()));
    stopper.WaitUntil(std::min(start + std::chrono::seconds(second), start + plan->duration));
  }
  stop = true;
  stopper.Stop();
  for (std::thread& thread : threads) thread.join();
  if (killer.joinable()) killer.join();
  const double seconds = elapsed();
  growth.Sample(static_cast<double>(workload.operations().load()));
  if (kills.count > 0) (*client)->WaitConnected(Deadline::After(context.settings().timeout));
  progress.Show("dropping what it stored ...");
  workload.DropAll();
  progress.Show("");
  return Report(context, workload, growth, kills, (*client)->stats(), seconds);
}

void AddOptions(CLI::App* bench, BenchOptions& o) {
  bench->add_option("--duration", o.duration, "How long")->type_name("TIME")->capture_default_str();
  bench->add_option("--threads", o.work.threads, "Threads")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  bench->add_option("--keys", o.work.keys, "Different keys")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  bench->add_option("--sizes", o.sizes, "Lengths of values, spread over their logarithm")
      ->type_name("MIN..MAX")
      ->capture_default_str();
  bench->add_option("--batch", o.work.batch, "Most items of one operation")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  bench->add_option("--store-percent", o.work.store_percent, "Stores among the operations")
      ->check(CLI::Range(0, 100))
      ->capture_default_str();
  bench->add_option("--cancel-percent", o.work.cancel_percent, "Operations cancelled on their way")
      ->check(CLI::Range(0, 100))
      ->capture_default_str();
  bench->add_option("--op-deadline", o.deadline, "The patience of one operation")
      ->type_name("TIME")
      ->capture_default_str();
  bench->add_option("--seed", o.work.seed, "Of keys, sizes and order")->capture_default_str();
  bench->add_flag("--with-daemon", o.with_daemon, "Start a daemon for it, and end that afterwards");
  bench->add_option("--daemon", o.daemon.binary, "Its program; else the penstockd beside this one")
      ->type_name("PATH");
  bench->add_option("--arena", o.daemon.arena, "Its memory; less than the values need: evictions")
      ->type_name("BYTES")
      ->capture_default_str();
  bench->add_option("--kill-every", o.kill_every, "kill -9 it at random, on average so often")
      ->type_name("TIME");
  bench->add_option("--kill-command", o.kill_command,
                    "Run this instead, to disturb a daemon that is not the bench's own");
}

}  // namespace

void AddBenchCommand(CLI::App& app, Chosen& chosen) {
  CLI::App* bench =
      AddCommand(app, "bench", "Loads a daemon and checks every byte that comes back",
                 "  penstock bench --duration 30s\n"
                 "  penstock bench --with-daemon --kill-every 5s --duration 10m --json\n"
                 "  penstock bench --kill-command 'systemctl restart penstockd' --kill-every 30s");
  const auto options = std::make_shared<BenchOptions>();
  AddOptions(bench, *options);
  bench->callback([=, &chosen] { chosen.run = [=](Context& c) { return Bench(c, *options); }; });
}

}  // namespace penstock::cli
