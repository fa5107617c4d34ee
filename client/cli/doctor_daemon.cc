// The half of `penstock doctor` that talks to a daemon.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "client/cli/admin.h"
#include "client/cli/doctor.h"
#include "client/cli/self_describing.h"
#include "common/base/random.h"
#include "common/base/units.h"
#include "common/transport/endpoint.h"

namespace penstock::cli {
namespace {

using Level = Finding::Level;

constexpr size_t kTestBytes = 1 << 20;
constexpr int kPings = 20;

Finding Unreachable(const std::string& address, const Status& why) {
  return {Level::kFail, "reach", fmt::format("{}: {}", address, why.message()),
          "is penstockd running there, on that address and port, and does no firewall or network "
          "policy stand between? `ss -ltnp | grep penstockd` on its machine tells"};
}

// The time that one round trip takes, seen from here: no clock of the other side is asked.
Finding RoundTrip(const Context& context, Client& client) {
  std::vector<double> micros;
  for (int i = 0; i < kPings; ++i) {
    const MonotonicTime start = MonotonicNow();
    const auto ping = client.Ping(context.deadline());
    ping->Wait(Deadline::After(Deadline::kMax));
    if (!ping->status().ok()) {
      return {Level::kFail, "round-trip", ping->status().ToString(),
              "the daemon is reached and does not answer: look at its log and load"};
    }
    micros.push_back(std::chrono::duration<double, std::micro>(MonotonicNow() - start).count());
  }
  std::sort(micros.begin(), micros.end());
  return {Level::kOk, "round-trip",
          fmt::format("{:.0f} us in the middle of {}, {:.0f} us at most, measured here",
                      micros[kPings / 2], kPings, micros.back()),
          ""};
}

Result<std::string> StoreAndFetch(const Context& context, Client& client) {
  NamespaceDescriptor descriptor;
  descriptor.tenant = context.settings().tenant;
  descriptor.model = "penstock-doctor";
  descriptor.layout = "bytes.v1";
  PENSTOCK_ASSIGN_OR_RETURN(const Namespace ns, client.OpenNamespace(descriptor));
  const uint64_t id = Random64();
  const ChunkKey key = NamedKey(ns.fingerprint(), fmt::format("self-test-{:016x}", id));
  std::vector<std::byte> sent(kTestBytes), got(kTestBytes, std::byte{0xA5});
  FillValue(id, 1, sent);
  const Deadline deadline = context.deadline();
  const auto outcome = [](const OperationPtr& operation) {
    operation->Wait(Deadline::After(Deadline::kMax));
    return operation->status().ok() ? operation->items()[0].status : operation->status();
  };
  StoreItem item;
  item.ns = ns;
  item.key = key;
  item.pieces = {{sent.data(), sent.size()}};
  const MonotonicTime start = MonotonicNow();
  PENSTOCK_RETURN_IF_ERROR(outcome(client.Store({item}, false, deadline)).Annotate("storing"));
  const MonotonicTime stored = MonotonicNow();
  PENSTOCK_RETURN_IF_ERROR(
      outcome(client.Fetch({{ns, key, {{got.data(), got.size()}}}}, {}, deadline))
          .Annotate("fetching"));
  const MonotonicTime fetched = MonotonicNow();
  const ValueVerdict verdict = CheckValue(id, got);
  // What could not be dropped is evicted in time.
  [[maybe_unused]] const Status dropped = outcome(client.Drop(ns, {key}, deadline));
  if (verdict.kind != ValueVerdict::Kind::kOk) {
    return Status(Code::kChecksumMismatch, verdict.Describe());
  }
  const auto millis = [](Duration d) {
    return std::chrono::duration<double, std::milli>(d).count();
  };
  return fmt::format("{} stored in {:.1f} ms, fetched in {:.1f} ms, every byte right",
                     RoughBytes(kTestBytes), millis(stored - start), millis(fetched - stored));
}

Finding TestWire(const Context& context, const std::string& wire) {
  const std::string name = "wire." + wire;
  auto client = context.Connect(wire);
  const bool offered =
      client.ok() || client.status().message().find("no common wire") == std::string::npos;
  if (!offered) {
    return {Level::kOk, name,
            wire == "local" ? "not offered: it is for the daemon's own user, at its Unix socket"
                            : "not offered by the daemon (penstockd --wires=ucx,tcp does)",
            ""};
  }
  if (!client.ok()) {
    return {Level::kWarn, name, client.status().message(),
            "the daemon or this machine does not do this wire; others may be fine"};
  }
  const std::string got = (*client)->stats().wire;
  if (got != wire) {
    return {Level::kWarn, name, fmt::format("the session came up with the {} wire", got),
            "see transport." + wire + " above"};
  }
  const auto result = StoreAndFetch(context, **client);
  if (result.ok()) return {Level::kOk, name, *result, ""};
  return {Level::kFail, name, result.status().ToString(),
          std::string(CodeAdvice(result.status().code()))};
}

// Each address that the daemon says it serves on, tried from here.
void TryAddresses(const admin::v1::StatusReply& status, std::vector<Finding>& findings) {
  for (const std::string& address : status.addresses()) {
    const auto parsed = Address::Parse(address);
    if (!parsed.ok()) continue;
    const bool everywhere = parsed->host == "0.0.0.0" || parsed->host == "::";
    if (everywhere) {
      findings.push_back({Level::kOk, "address", address + ": on every interface", ""});
      continue;
    }
    ClientOptions options;
    options.address = address;
    options.wire = "tcp";
    const auto client = Client::Create(options);
    const bool reached =
        client.ok() && (*client)->WaitConnected(Deadline::After(std::chrono::seconds(2)));
    findings.push_back(
        reached ? Finding{Level::kOk, "address", address + ": reached", ""}
                : Finding{Level::kWarn, "address", address + ": not reached from here",
                          "fine when it is meant for other clients (another host, a container)"});
  }
}

// `incarnation`: of the daemon that serves clients, or 0.
void ExamineAdmin(const Context& context, uint64_t incarnation, std::vector<Finding>& findings) {
  Admin admin(context.settings().admin_address);
  const auto status = admin.GetStatus(context.deadline());
  if (!status.ok()) {
    findings.push_back({Level::kWarn, "admin", status.status().message(),
                        "give its address with --admin-address; clients do not need it, "
                        "`penstock ns` and `top` do"});
    return;
  }
  if (incarnation != 0 && !IsSameDaemon(*status, incarnation)) {
    findings.push_back({Level::kFail, "admin",
                        fmt::format("{} is another daemon's (incarnation {})",
                                    context.settings().admin_address, status->incarnation()),
                        "give --admin-address of the daemon that --address names"});
    return;
  }
  findings.push_back({Level::kOk, "admin",
                      fmt::format("{}, up {}, {} data threads, {} sessions", status->version(),
                                  RoughDuration(std::chrono::milliseconds(status->uptime_ms())),
                                  status->data_threads(), status->sessions()),
                      ""});
  const auto& arena = status->arena();
  findings.push_back({Level::kOk, "arena",
                      fmt::format("{} of {} used; {}", RoughBytes(arena.used_bytes()),
                                  RoughBytes(arena.capacity_bytes()), arena.chosen_because()),
                      ""});
  TryAddresses(*status, findings);
  const auto health = admin.Health(true, context.deadline());
  if (!health.ok()) {
    findings.push_back({Level::kFail, "health", health.status().message(), "look at its log"});
    return;
  }
  std::string reasons;
  for (const auto& reason : health->reasons()) {
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", reason.what(), reason.detail());
  }
  const Level level = !health->ready()     ? Level::kFail
                      : health->degraded() ? Level::kWarn
                                           : Level::kOk;
  findings.push_back({level, "health",
                      level == Level::kOk
                          ? fmt::format("ready; its own store and fetch take {} us, measured there",
                                        health->self_check_took_us())
                          : reasons,
                      level == Level::kOk ? "" : "see the daemon's log, and docs/operations"});
}

}  // namespace

std::vector<Finding> ExamineDaemon(const Context& context, bool self_test) {
  std::vector<Finding> findings;
  Progress progress;
  progress.Show("reaching the daemon ...");
  const std::string& address = context.settings().address;
  auto client = context.Connect();
  if (!client.ok()) {
    findings.push_back(Unreachable(address, client.status()));
    progress.Show("asking its administration ...");
    ExamineAdmin(context, 0, findings);
    return findings;
  }
  const ClientStats stats = (*client)->stats();
  findings.push_back({Level::kOk, "reach",
                      fmt::format("{}: {} incarnation {:016x}, {} wire", address,
                                  stats.daemon_software, stats.daemon_incarnation, stats.wire),
                      ""});
  findings.push_back(RoundTrip(context, **client));
  progress.Show("asking its administration ...");
  ExamineAdmin(context, stats.daemon_incarnation, findings);
  if (!self_test) return findings;
  for (const WireReport& wire : DescribeWires()) {
    if (!wire.usable) continue;
    progress.Show(fmt::format("storing and fetching over {} ...", wire.wire));
    findings.push_back(TestWire(context, wire.wire));
  }
  return findings;
}

}  // namespace penstock::cli
