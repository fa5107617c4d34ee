// ns, top: what a daemon holds and whom it serves.

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <map>

#include "client/cli/admin.h"
#include "client/cli/commands.h"
#include "common/base/units.h"

namespace penstock::cli {
namespace {

using admin::v1::SessionsReply;
using admin::v1::StatusReply;

// With --address alone, what answers at the usual place may be another daemon.
Status CheckSameDaemon(const Context& context, Admin& admin) {
  if (!context.address_alone()) return Status::Ok();
  PENSTOCK_ASSIGN_OR_RETURN(const auto client, context.Connect());
  PENSTOCK_ASSIGN_OR_RETURN(const StatusReply status, admin.GetStatus(context.deadline()));
  if (IsSameDaemon(status, client->stats().daemon_incarnation)) return Status::Ok();
  return Status(Code::kInvalidArgument,
                fmt::format("{} administers another daemon than {}: give --admin-address, too",
                            context.settings().admin_address, context.settings().address));
}

// What tells the namespaces of one model apart: KV group and ranks, where there are several.
std::string GroupAndRank(const Json& descriptor) {
  std::string text;
  if (const std::string kind = descriptor.value("group_kind", ""); !kind.empty()) {
    text = fmt::format("group {} {}", descriptor.value("group", 0), kind);
  }
  for (const char* axis : {"tp", "pp", "dcp"}) {
    const int size = descriptor.value(fmt::format("{}_size", axis), 1);
    if (size <= 1) continue;
    const int rank = descriptor.value(fmt::format("{}_rank", axis), 0);
    text += fmt::format("{}{} {} of {}", text.empty() ? "" : ", ", axis, rank, size);
  }
  return text;
}

int ListNamespaces(const Context& context) {
  Admin admin(context.settings().admin_address);
  if (const Status same = CheckSameDaemon(context, admin); !same.ok()) return context.Fail(same);
  const auto reply = admin.Namespaces(context.deadline());
  if (!reply.ok()) return context.Fail(reply.status());
  Json list = Json::array();
  std::vector<std::vector<std::string>> rows;
  for (const auto& ns : reply->namespaces()) {
    Json descriptor = Json::parse(ns.descriptor_json(), nullptr, false);
    if (descriptor.is_discarded()) descriptor = Json::object();
    rows.push_back({ns.fingerprint().substr(0, 12), ns.tenant(), descriptor.value("model", ""),
                    descriptor.value("kv_dtype", ""), GroupAndRank(descriptor),
                    std::to_string(ns.chunks()), RoughBytes(ns.bytes())});
    list.push_back({{"fingerprint", ns.fingerprint()},
                    {"tenant", ns.tenant()},
                    {"chunks", ns.chunks()},
                    {"bytes", ns.bytes()},
                    {"descriptor", std::move(descriptor)}});
  }
  return context.Print(
      {{"ok", true}, {"code", "OK"}, {"namespaces", list}},
      Table({"FINGERPRINT", "TENANT", "MODEL", "KV DTYPE", "PART", "CHUNKS", "BYTES"}, rows));
}

struct Snapshot {
  MonotonicTime at;
  StatusReply status;
  SessionsReply sessions;
};

Result<Snapshot> Take(Admin& admin, const Context& context) {
  Snapshot snapshot;
  const Deadline deadline = context.deadline();
  PENSTOCK_ASSIGN_OR_RETURN(snapshot.status, admin.GetStatus(deadline));
  PENSTOCK_ASSIGN_OR_RETURN(snapshot.sessions, admin.Sessions(deadline));
  snapshot.at = MonotonicNow();
  return snapshot;
}

Json ToJson(const Snapshot& snapshot) {
  const StatusReply& status = snapshot.status;
  const auto& arena = status.arena();
  Json json = {
      {"ok", true},
      {"code", "OK"},
      {"version", status.version()},
      {"incarnation", status.incarnation()},
      {"uptime_ms", status.uptime_ms()},
      {"pid", status.pid()},
      {"addresses", std::vector<std::string>(status.addresses().begin(), status.addresses().end())},
      {"wires", std::vector<std::string>(status.wires().begin(), status.wires().end())},
      {"in_flight", status.in_flight()},
      {"draining", status.draining()},
      {"arena",
       {{"capacity_bytes", arena.capacity_bytes()},
        {"used_bytes", arena.used_bytes()},
        {"chunk_bytes", arena.chunk_bytes()},
        {"pinned_bytes", arena.pinned_bytes()},
        {"reserved_bytes", arena.reserved_bytes()},
        {"chunks", arena.chunks()},
        {"pending_chunks", arena.pending_chunks()},
        {"reservations", arena.reservations()},
        {"evicted_chunks", arena.evicted_chunks()}}}};
  json["sessions"] = Json::array();
  for (const auto& s : snapshot.sessions.sessions()) {
    json["sessions"].push_back({{"id", s.id()},
                                {"name", s.name()},
                                {"peer", s.peer()},
                                {"tenant", s.tenant()},
                                {"software", s.software()},
                                {"wire", s.wire()},
                                {"age_ms", s.age_ms()},
                                {"idle_ms", s.idle_ms()},
                                {"in_flight", s.in_flight()},
                                {"requests", s.requests()},
                                {"stored_bytes", s.stored_bytes()},
                                {"fetched_bytes", s.fetched_bytes()},
                                {"reservations", s.reservations()}});
  }
  return json;
}

// Rates are since `before`, or since the session began.
std::string ToText(const Snapshot& now, const Snapshot* before) {
  const StatusReply& status = now.status;
  const auto& arena = status.arena();
  std::string text = fmt::format(
      "{}  pid {}  up {}  {} sessions  {} in flight{}\n"
      "arena {} of {} ({:.0f} %), {} chunks, {} pinned, {} reserved, {} evicted\n\n",
      status.version(), status.pid(), RoughDuration(std::chrono::milliseconds(status.uptime_ms())),
      now.sessions.sessions_size(), status.in_flight(), status.draining() ? "  DRAINING" : "",
      RoughBytes(arena.used_bytes()), RoughBytes(arena.capacity_bytes()),
      arena.capacity_bytes() == 0 ? 0.0 : 100.0 * arena.used_bytes() / arena.capacity_bytes(),
      arena.chunks(), RoughBytes(arena.pinned_bytes()), RoughBytes(arena.reserved_bytes()),
      arena.evicted_chunks());
  std::map<uint64_t, const admin::v1::SessionStatus*> old;
  if (before != nullptr) {
    for (const auto& s : before->sessions.sessions()) old[s.id()] = &s;
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& s : now.sessions.sessions()) {
    const auto it = old.find(s.id());
    const auto* was = it == old.end() ? nullptr : it->second;
    const double seconds = was != nullptr
                               ? std::chrono::duration<double>(now.at - before->at).count()
                               : static_cast<double>(s.age_ms()) / 1000;
    const auto rate = [seconds](uint64_t count, uint64_t since) {
      return seconds <= 0 ? 0.0 : static_cast<double>(count - since) / seconds;
    };
    rows.push_back(
        {s.name(), s.peer(), s.wire(), std::to_string(s.in_flight()),
         fmt::format("{:.0f}", rate(s.requests(), was ? was->requests() : 0)),
         RoughBytes(static_cast<uint64_t>(rate(s.fetched_bytes(), was ? was->fetched_bytes() : 0))),
         RoughBytes(static_cast<uint64_t>(rate(s.stored_bytes(), was ? was->stored_bytes() : 0))),
         RoughDuration(std::chrono::milliseconds(s.age_ms()))});
  }
  return text +
         Table({"CLIENT", "PEER", "WIRE", "IN FLIGHT", "REQ/s", "FETCH/s", "STORE/s", "AGE"}, rows);
}

// Waits `interval`, or until Ctrl-C (then true).
bool Interrupted(int signal_fd, Duration interval) {
  pollfd fd{signal_fd, POLLIN, 0};
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(interval).count();
  return poll(&fd, 1, static_cast<int>(millis)) > 0;
}

int Top(const Context& context, bool once, Duration interval) {
  Admin admin(context.settings().admin_address);
  if (const Status same = CheckSameDaemon(context, admin); !same.ok()) return context.Fail(same);
  auto now = Take(admin, context);
  if (!now.ok()) return context.Fail(now.status());
  if (once || context.json() || isatty(STDOUT_FILENO) == 0) {
    return context.Print(ToJson(*now), ToText(*now, nullptr));
  }
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
  std::optional<Snapshot> before;
  Status ended;
  while (ended.ok()) {
    std::printf("\033[H\033[2J%s\n", ToText(*now, before ? &*before : nullptr).c_str());
    std::fflush(stdout);
    before = std::move(now).value();
    if (Interrupted(signal_fd, interval)) break;
    now = Take(admin, context);
    ended = now.status();
  }
  close(signal_fd);
  return ended.ok() ? kExitOk : context.Fail(ended);
}

}  // namespace

void AddAdminCommands(CLI::App& app, Chosen& chosen) {
  CLI::App* ns = AddCommand(app, "ns", "Lists the namespaces that a daemon knows",
                            "  penstock ns\n  penstock ns --json --admin-address 127.0.0.1:7412");
  ns->callback([&chosen] { chosen.run = [](Context& c) { return ListNamespaces(c); }; });

  CLI::App* top = AddCommand(app, "top", "Shows what a daemon is doing, until Ctrl-C",
                             "  penstock top\n  penstock top --once\n  penstock top --json");
  const auto once = std::make_shared<bool>(false);
  const auto interval = std::make_shared<double>(1.0);
  top->add_flag("--once", *once, "One look, as when the output is no terminal");
  top->add_option("--interval", *interval, "Seconds between looks")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  top->callback([=, &chosen] {
    chosen.run = [=](Context& c) {
      return Top(c, *once, std::chrono::milliseconds(static_cast<int64_t>(*interval * 1000)));
    };
  });
}

}  // namespace penstock::cli
