// ping: round trips to a daemon and back through its data thread.

#include <fmt/format.h>

#include <algorithm>

#include "client/cli/commands.h"

namespace penstock::cli {
namespace {

double Micros(Duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

int Ping(const Context& context, int count) {
  auto client = context.Connect();
  if (!client.ok()) return context.Fail(client.status());
  std::vector<double> micros;
  Progress progress;
  for (int i = 0; i < count; ++i) {
    const MonotonicTime start = MonotonicNow();
    const auto ping = (*client)->Ping(context.deadline());
    ping->Wait(Deadline::After(Deadline::kMax));
    if (!ping->status().ok()) return context.Fail(ping->status());
    micros.push_back(Micros(MonotonicNow() - start));
    if (i % 100 == 99) progress.Show(fmt::format("{} of {}", i + 1, count));
  }
  progress.Show("");
  std::sort(micros.begin(), micros.end());
  double sum = 0;
  for (const double m : micros) sum += m;
  const double p99 = micros[std::min(micros.size() - 1, micros.size() * 99 / 100)];
  const ClientStats stats = (*client)->stats();
  const Json result = {{"ok", true},
                       {"code", "OK"},
                       {"address", context.settings().address},
                       {"software", stats.daemon_software},
                       {"incarnation", fmt::format("{:016x}", stats.daemon_incarnation)},
                       {"wire", stats.wire},
                       {"count", count},
                       {"min_us", micros.front()},
                       {"mean_us", sum / micros.size()},
                       {"median_us", micros[micros.size() / 2]},
                       {"p99_us", p99},
                       {"max_us", micros.back()}};
  return context.Print(
      result, fmt::format("{} at {} ({} wire): {} round trips, {:.0f} us at least, {:.0f} us in "
                          "the middle, {:.0f} us p99, {:.0f} us at most",
                          stats.daemon_software, context.settings().address, stats.wire, count,
                          micros.front(), micros[micros.size() / 2], p99, micros.back()));
}

}  // namespace

void AddPingCommand(CLI::App& app, Chosen& chosen) {
  CLI::App* ping = AddCommand(app, "ping", "Measures round trips to a daemon",
                              "  penstock ping\n  penstock ping --count 1000 --json");
  const auto count = std::make_shared<int>(10);
  ping->add_option("--count", *count, "Round trips")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  ping->callback([=, &chosen] { chosen.run = [=](Context& c) { return Ping(c, *count); }; });
}

}  // namespace penstock::cli
