#include "server/daemon/settings.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "common/base/units.h"
#include "common/config/environment.h"
#include "fmt/format.h"
#include "server/daemon/machine/sizing.h"

namespace penstock {
namespace {

constexpr uint32_t kMaxAutoThreads = 4;

TextRule AddressRule() {
  return {.placeholder = "ADDRESS",
          .check = [](std::string_view text) { return Address::Parse(text).status(); }};
}

TextRule ArenaRule() {
  return {.placeholder = "SIZE|PERCENT|auto",
          .check = [](std::string_view text) { return ArenaWish::Parse(text).status(); }};
}

// auto, none or an absolute path.
TextRule SocketPathRule() {
  return {.placeholder = "PATH|auto|none", .check = [](std::string_view text) -> Status {
            if (text == "auto" || text == "none" || text.starts_with('/')) return Status::Ok();
            return Status(Code::kInvalidArgument, "want auto, none or an absolute path");
          }};
}

TextRule WireRule() {
  return {.placeholder = "WIRE", .check = [](std::string_view text) -> Status {
            if (IsWireName(text)) return Status::Ok();
            return Status(Code::kInvalidArgument, "want auto, local, ucx or tcp");
          }};
}

// HOST:PORT, and with `or_none` the word none.
TextRule HostPortRule(bool or_none) {
  return {.placeholder = or_none ? "HOST:PORT|none" : "HOST:PORT",
          .check = [or_none](std::string_view text) -> Status {
            if (or_none && text == "none") return Status::Ok();
            PENSTOCK_ASSIGN_OR_RETURN(const Address address, Address::Parse(text));
            return address.kind == Address::Kind::kTcp
                       ? Status::Ok()
                       : Status(Code::kInvalidArgument, "want a host and a port");
          }};
}

OptionType Percent(uint32_t* value, uint32_t min, uint32_t max) {
  return IntegerOption(value, Range<uint32_t>{min, max});
}

void AddAddresses(Settings& s, OptionTable& table) {
  table
      .Add("listen", ListOption(&s.listen, AddressRule()),
           "Addresses to serve clients on. Port 0 lets the kernel choose. By default all IPv4 and, "
           "where the host has it, IPv6 addresses.")
      .Add("unix_socket", TextOption(&s.unix_socket, SocketPathRule()),
           "Unix socket for clients on this host. auto: penstock.sock in $XDG_RUNTIME_DIR, or in "
           "/run/penstock, where one of them can be written; only with the default of listen.")
      .Add("advertise_host",
           TextOption(&s.advertise_host, {.placeholder = "HOST", .may_be_empty = true}),
           "Host name or address that clients are told to use for further connections, where it "
           "differs from the one they dialed (NAT, containers).")
      .Add("wires", ListOption(&s.wires, WireRule()),
           "What may carry bulk bytes, best first: local, ucx, tcp. auto: tcp, before it ucx where "
           "this host has an RDMA device, and before that local, which lets clients at the Unix "
           "socket that have this daemon's user (or root's) read its memory. UCX 1.13 ends the "
           "process when garbage comes to its port: offer ucx only where nobody hostile can "
           "connect.")
      .Add(
          "admin.address", TextOption(&s.admin_address, HostPortRule(false)),
          "Where the administration interface (gRPC) listens. It has no access control: keep it on "
          "the loopback or behind one.")
      .Add("metrics.address", TextOption(&s.metrics_address, HostPortRule(true)),
           "Where Prometheus finds /metrics. IPv4 only, with the libraries of Debian 12.")
      .Add("ready_file", TextOption(&s.ready_file, {.placeholder = "PATH", .may_be_empty = true}),
           "File that tells, as JSON, where the daemon listens; appears once it serves.")
      .Add("stop_grace", DurationOption(&s.stop_grace, {Duration::zero(), std::chrono::hours(1)}),
           "How long requests in flight may take to finish after SIGTERM. A second signal ends at "
           "once.");
}

void AddArena(Settings& s, OptionTable& table) {
  table
      .Add("arena.size", TextOption(&s.arena, ArenaRule()),
           "Memory for chunks. auto: a quarter of what this process could take at start. A "
           "percentage is of the same. An amount is taken or refused, never cut.")
      .Add("arena.pages",
           ChoiceOption<PageKind>(&s.arena_pages, {{"ordinary", PageKind::kOrdinary},
                                                   {"transparent", PageKind::kTransparentHuge},
                                                   {"huge", PageKind::kHugeTlb}}),
           "Pages that back the arena. huge needs vm.nr_hugepages.")
      .Add("arena.prefault", SwitchOption(&s.arena_prefault),
           "Touch every page at start, so that no store pays for a page fault.")
      .Add("arena.lock", SwitchOption(&s.arena_lock),
           "Lock the arena in memory. Needs RLIMIT_MEMLOCK.")
      .Add("store.max_chunk", AutoBytesOption(&s.max_chunk, {1, uint64_t{1} << 40}),
           "Longest chunk. auto: a quarter of the arena.")
      .Add("store.headroom_percent", Percent(&s.headroom_percent, 0, 50),
           "Share of the arena that is kept free by evicting ahead of need.")
      .Add("store.max_pinned_percent", Percent(&s.max_pinned_percent, 0, 95),
           "Share of the arena that pins may hold.")
      .Add("store.max_reserved_percent", Percent(&s.max_reserved_percent, 0, 95),
           "Share of the arena that reservations may hold.")
      .Add("store.max_pending_percent", Percent(&s.max_pending_percent, 1, 95),
           "Share of the arena that chunks being stored may hold.")
      .Add("store.max_fetching_percent", Percent(&s.max_fetching_percent, 1, 100),
           "Share of the arena that chunks being fetched may hold; those of one session, half of "
           "it, and three quarters where they are reserved or pinned. Beyond: BUSY.")
      .Add("store.max_pin_ttl", DurationOption(&s.max_pin_ttl), "Longest pin; longer ones are cut.")
      .Add("store.max_reservation_ttl", DurationOption(&s.max_reservation_ttl),
           "Longest reservation; longer ones are cut.");
}

void AddLimits(Settings& s, OptionTable& table) {
  const Range<Duration> short_times{std::chrono::milliseconds(10), std::chrono::hours(1)};
  table
      .Add("threads.data", IntegerOption(&s.data_threads, Range<uint32_t>{0, 256}),
           "Threads that own sessions and move bytes. 0: one a core, at most 4.")
      .Add("threads.workers", IntegerOption(&s.worker_threads, Range<uint32_t>{0, 256}),
           "Threads that check large chunks. 0: one for two cores, at most 4.")
      .Add("limits.sessions", IntegerOption(&s.max_sessions, Range<uint32_t>{8, 1u << 20}),
           "Sessions at a time. Cut to what RLIMIT_NOFILE allows, as the log tells.")
      .Add("limits.in_flight", IntegerOption(&s.max_in_flight, Range<uint32_t>{1, 1u << 24}),
           "FETCH and STORE requests at a time, in all. Beyond: BUSY.")
      .Add("limits.session_in_flight",
           IntegerOption(&s.session.max_in_flight, Range<uint32_t>{1, 1u << 20}),
           "The same for one session.")
      .Add("limits.session_streams", IntegerOption(&s.session.max_streams, Range<uint32_t>{1, 64}),
           "Data streams of one session on the tcp wire.")
      .Add("limits.session_queue",
           BytesOption(&s.session.max_queued_bytes, {64u << 10, uint64_t{1} << 32}),
           "Bytes of messages that wait for a client to read them. Beyond: the session is closed.")
      .Add("limits.message_memory", BytesOption(&s.message_memory, {16u << 20, uint64_t{1} << 40}),
           "Bytes of messages, half arrived or not yet sent, that all sessions may have beyond "
           "64KiB each. Beyond: the session that wants more is closed with RESOURCE_EXHAUSTED.")
      .Add("limits.fetch_window",
           BytesOption(&s.serving.fetch_window_bytes, {64u << 10, uint64_t{1} << 32}),
           "Bytes of one session's fetches that are given to the wire at a time.")
      .Add("limits.default_deadline", DurationOption(&s.serving.default_deadline, short_times),
           "For requests that state none.")
      .Add("limits.max_deadline", DurationOption(&s.serving.max_deadline, short_times),
           "Longer deadlines are cut to it.")
      .Add("session.hello_timeout", DurationOption(&s.session.hello_timeout, short_times),
           "From accepting a connection to its whole HELLO.")
      .Add("session.heartbeat", DurationOption(&s.session.heartbeat, short_times),
           "Silence after which a client is asked for a sign of life.")
      .Add("session.peer_timeout", DurationOption(&s.session.peer_timeout, short_times),
           "Silence after which a client counts as dead, and all it held is released. A message "
           "must come whole within it.");
}

void AddOperations(Settings& s, OptionTable& table) {
  const Range<Duration> times{std::chrono::milliseconds(50), std::chrono::hours(1)};
  table
      .Add("health.interval", DurationOption(&s.health.interval, times),
           "Time between two self-checks over the data path.")
      .Add("health.timeout", DurationOption(&s.health.timeout, times),
           "How long a self-check, or a data thread's answer, may take before the daemon is not "
           "ready.")
      .Add("health.dead_after", DurationOption(&s.health.dead_after, times),
           "Silence of a data thread after which the daemon is not live.")
      .Add("log.level",
           ChoiceOption<LogLevel>(&s.log_level, {{"debug", LogLevel::kDebug},
                                                 {"info", LogLevel::kInfo},
                                                 {"warn", LogLevel::kWarn},
                                                 {"error", LogLevel::kError}}),
           "What is logged, to standard error. Can be changed while the daemon runs.")
      .Add("log.format",
           ChoiceOption<LogFormat>(&s.log_format,
                                   {{"text", LogFormat::kText}, {"json", LogFormat::kJson}}),
           "key=value lines, or one JSON object a line.");
}

// Where the Unix socket goes by default; empty: nowhere.
std::string DefaultUnixSocket() {
  std::vector<std::string> directories;
  if (auto runtime = EnvironmentVariable("XDG_RUNTIME_DIR")) directories.push_back(*runtime);
  directories.push_back("/run/penstock");
  for (const std::string& directory : directories) {
    if (!directory.empty() && access(directory.c_str(), W_OK | X_OK) == 0) {
      return directory + "/penstock.sock";
    }
  }
  return {};
}

Status PlanListening(const Settings& s, bool is_default, DaemonOptions& options) {
  for (const std::string& text : s.listen) {
    PENSTOCK_ASSIGN_OR_RETURN(Address address, Address::Parse(text));
    const bool any_v6 = text.starts_with("tcp://[::]");
    options.listen.push_back({std::move(address), /*optional=*/is_default && any_v6});
  }
  std::string path = s.unix_socket;
  const bool automatic = path == "auto";
  if (automatic) path = is_default ? DefaultUnixSocket() : std::string();
  if (!path.empty() && path != "none") {
    if (!path.starts_with('/')) {
      return Status(Code::kInvalidArgument,
                    fmt::format("unix_socket: '{}' is no absolute path", path));
    }
    options.listen.push_back({{.kind = Address::Kind::kUnix, .host = path}, automatic});
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Address admin, Address::Parse(s.admin_address));
  options.admin_host = admin.host;
  options.admin_port = admin.port;
  options.metrics = s.metrics_address != "none";
  if (options.metrics) {
    PENSTOCK_ASSIGN_OR_RETURN(const Address metrics, Address::Parse(s.metrics_address));
    options.metrics_host = metrics.host;
    options.metrics_port = metrics.port;
  }
  options.advertise_host = s.advertise_host;
  options.wires.clear();
  for (const std::string& wire : s.wires) {
    if (wire != "auto") {
      options.wires.push_back(wire);
    } else {
      options.wires.push_back("local");
      if (HasRdmaDevice()) options.wires.push_back("ucx");
      options.wires.push_back("tcp");
    }
  }
  if (std::find(options.wires.begin(), options.wires.end(), "tcp") == options.wires.end()) {
    return Status(Code::kInvalidArgument,
                  "wires: add tcp, over which the daemon checks itself, and to which clients fall "
                  "back");
  }
  return Status::Ok();
}

double Share(uint32_t percent) { return static_cast<double>(percent) / 100; }

void PlanStore(const Settings& s, const Sizing& sizing, DaemonOptions& options) {
  ChunkStoreOptions& store = options.store;
  store.arena = {.bytes = sizing.arena_bytes,
                 .pages = s.arena_pages,
                 .prefault = s.arena_prefault,
                 .lock = s.arena_lock};
  store.max_chunk_bytes = s.max_chunk.value_or(0);
  store.headroom = Share(s.headroom_percent);
  store.max_pinned = Share(s.max_pinned_percent);
  store.max_reserved = Share(s.max_reserved_percent);
  store.max_pending = Share(s.max_pending_percent);
  options.serving.max_fetching = Share(s.max_fetching_percent);
  store.max_pin_ttl = s.max_pin_ttl;
  store.max_reservation_ttl = s.max_reservation_ttl;
}

void PlanThreads(const Settings& s, const Machine& machine, DaemonOptions& options) {
  options.data_threads =
      s.data_threads != 0 ? s.data_threads : std::clamp(machine.cores, 1u, kMaxAutoThreads);
  options.worker_threads =
      s.worker_threads != 0 ? s.worker_threads : std::clamp(machine.cores / 2, 1u, kMaxAutoThreads);
  options.start_up.push_back(fmt::format(
      "{} data thread{} and {} worker{} on {} core{}", options.data_threads,
      options.data_threads == 1 ? "" : "s", options.worker_threads,
      options.worker_threads == 1 ? "" : "s", machine.cores, machine.cores == 1 ? "" : "s"));
}

}  // namespace

OptionTable MakeOptionTable(Settings& settings) {
  OptionTable table("penstockd",
                    "Keeps KV-cache chunks in memory and serves them to inference engines.");
  AddAddresses(settings, table);
  AddArena(settings, table);
  AddLimits(settings, table);
  AddOperations(settings, table);
  // Those of the penstock command, which an operator may well set in the same shell.
  for (const char* variable : {"PENSTOCK_ADDRESS", "PENSTOCK_WIRE", "PENSTOCK_TENANT",
                               "PENSTOCK_NAMESPACE", "PENSTOCK_TIMEOUT"}) {
    table.IgnoreVariable(variable);
  }
  return table;
}

Result<DaemonOptions> PlanDaemon(const Settings& settings, const Machine& machine,
                                 bool listen_is_default) {
  DaemonOptions options;
  options.version = DaemonVersion();
  options.session = settings.session;
  options.max_message_bytes = settings.message_memory;
  options.serving = settings.serving;
  options.serving.max_in_flight = settings.max_in_flight;
  options.health = settings.health;
  options.start_up.push_back("machine: " + machine.ToString());
  PENSTOCK_RETURN_IF_ERROR(PlanListening(settings, listen_is_default, options));
  PENSTOCK_ASSIGN_OR_RETURN(const ArenaWish wish, ArenaWish::Parse(settings.arena));
  PENSTOCK_ASSIGN_OR_RETURN(const Sizing sizing, DecideSizing(machine, wish, settings.max_sessions,
                                                              1 + settings.session.max_streams));
  options.max_sessions = sizing.max_sessions;
  options.arena_reason = sizing.arena_reason;
  options.start_up.push_back(sizing.arena_reason);
  PlanStore(settings, sizing, options);
  PlanThreads(settings, machine, options);
  for (const std::string& warning : sizing.warnings) options.start_up.push_back(warning);
  return options;
}

std::string DaemonVersion() { return "penstockd " PENSTOCK_VERSION; }

}  // namespace penstock
