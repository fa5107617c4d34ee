#include "server/daemon/daemon.h"

#include <prometheus/exposer.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/random.h"
#include "common/log/log.h"
#include "common/transport/memory_registration.h"
#include "common/transport/socket.h"
#include "common/transport/socket_owner.h"
#include "fmt/format.h"
#include "server/daemon/admin/admin_server.h"
#include "server/daemon/admin/admin_service.h"
#include "server/daemon/serving/served_session.h"

namespace penstock {
namespace {

std::string HostPort(const std::string& host, uint16_t port) {
  return Address{.host = host, .port = port}.ToString().substr(sizeof("tcp://") - 1);
}

// Where this host reaches what listens at `address`.
Address DialableFromHere(Address address) {
  if (address.kind == Address::Kind::kUnix) return address;
  if (address.host == "0.0.0.0" || address.host.empty()) address.host = "127.0.0.1";
  if (address.host == "::") address.host = "::1";
  return address;
}

// What clients on this host may read.
std::optional<ExportedMemory> Exported(const ChunkStore& store) {
  if (store.arena_fd() < 0) return std::nullopt;
  return ExportedMemory{
      .fd = store.arena_fd(), .base = store.arena().data(), .bytes = store.arena().size()};
}

Status MetricsFailure(const std::string& host, uint16_t port, const char* why) {
  std::string text =
      fmt::format("the metrics address {} cannot be bound ({})", HostPort(host, port), why);
  const auto resolved = Resolve({.host = host, .port = port}, /*passive=*/true);
  for (size_t i = 0; resolved.ok() && i < resolved->size(); ++i) {
    const std::string owner = DescribeSocketOwner((*resolved)[i]);
    if (!owner.empty()) text += ": it is held by " + owner;
  }
  if (host.find(':') != host.npos) text += ": the metrics server of this build has no IPv6";
  return Status(Code::kIoError, text + " (choose another with metrics.address)");
}

}  // namespace

// In the order of creation; destroyed backwards.
struct Daemon::Parts {
  explicit Parts(DaemonOptions the_options) : options(std::move(the_options)) {}

  Status Build();
  Status BuildThreads();
  Status ChooseWires();
  Status Listen();
  Status StartMetrics();
  std::unique_ptr<SessionEvents> Admit(Session& session);
  void Housekeep();
  void TakeFacts();

  DaemonOptions options;
  DaemonFacts facts;
  // By which the daemon knows its own self-check; nobody else can guess it.
  std::string internal_name;
  std::unique_ptr<ChunkStore> store;
  std::unique_ptr<MemoryRegistration> arena_with_wires;  // Where there is one that wants it.
  std::vector<std::unique_ptr<EventLoop>> loops;
  std::unique_ptr<EventLoop> house;
  std::unique_ptr<WorkerPool> workers;
  std::unique_ptr<Serving> serving;
  std::shared_ptr<MessageBudget> messages;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<HealthMonitor> health;
  std::shared_ptr<DaemonMetrics> metrics;
  std::unique_ptr<AdminService> admin_service;
  std::unique_ptr<AdminServer> admin;
  std::unique_ptr<prometheus::Exposer> exposer;
  bool stopped = false;
  bool drained = true;
};

Status Daemon::Parts::Build() {
  facts.incarnation = NewIncarnation();
  facts.started = MonotonicNow();
  facts.internal_ns = SelfCheckNamespace().ComputeFingerprint();
  internal_name = "self-check " + RandomToken();
  PENSTOCK_ASSIGN_OR_RETURN(store, ChunkStore::Create(options.store));
  PENSTOCK_RETURN_IF_ERROR(BuildThreads());
  serving = std::make_unique<Serving>(*store, *workers, options.serving);
  messages = std::make_shared<MessageBudget>(options.max_message_bytes);
  PENSTOCK_RETURN_IF_ERROR(Listen());

  HealthSubject subject{.client_name = internal_name};
  for (const auto& loop : loops) subject.data_loops.push_back(loop.get());
  for (const Address& address : listener->addresses()) {
    subject.addresses.push_back(DialableFromHere(address));
  }
  PENSTOCK_ASSIGN_OR_RETURN(health, HealthMonitor::Start(options.health, std::move(subject)));
  metrics = std::make_shared<DaemonMetrics>(
      DaemonMetrics::Sources{.serving = *serving,
                             .messages = *messages,
                             .health = [this] { return health->Report(); },
                             .version = options.version,
                             .started = facts.started,
                             .internal_ns = facts.internal_ns});
  admin_service = std::make_unique<AdminService>(*serving, *health, *metrics, facts);
  PENSTOCK_ASSIGN_OR_RETURN(
      admin, AdminServer::Start(options.admin_host, options.admin_port, *admin_service));
  if (options.metrics) PENSTOCK_RETURN_IF_ERROR(StartMetrics());
  TakeFacts();
  admin_service->Publish();
  house->Post([this] { Housekeep(); });
  return Status::Ok();
}

Status Daemon::Parts::BuildThreads() {
  for (uint32_t i = 0; i < std::max(options.data_threads, 1u); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(auto loop, EventLoop::Start(fmt::format("penstock-data{}", i)));
    loops.push_back(std::move(loop));
  }
  PENSTOCK_ASSIGN_OR_RETURN(house, EventLoop::Start("penstock-house"));
  PENSTOCK_ASSIGN_OR_RETURN(
      workers, WorkerPool::Start(std::max(options.worker_threads, 1u), options.worker_queue));
  return Status::Ok();
}

// Whether UCX can be had shows now, rather than with the first client that wants it; and no data
// thread waits while it starts.
Status Daemon::Parts::ChooseWires() {
  std::vector<std::string>& wires = options.wires;
  if (std::find(wires.begin(), wires.end(), "ucx") == wires.end()) return Status::Ok();
  for (const WireReport& report : DescribeWires()) {
    if (report.usable || std::erase(wires, report.wire) == 0) continue;
    const std::string why = fmt::format("not offering {}: {}", report.wire, report.detail);
    if (wires.empty()) return Status(Code::kUnimplemented, why);
    facts.start_up.push_back(why);
  }
  if (std::find(wires.begin(), wires.end(), "ucx") == wires.end()) return Status::Ok();
  PENSTOCK_ASSIGN_OR_RETURN(arena_with_wires, MemoryRegistration::Create(store->arena(), {}));
  return Status::Ok();
}

Status Daemon::Parts::Listen() {
  PENSTOCK_RETURN_IF_ERROR(ChooseWires());
  ListenOptions listen{.advertise_host = options.advertise_host,
                       .wires = options.wires,
                       .incarnation = facts.incarnation,
                       .limits = options.session,
                       .max_sessions = options.max_sessions,
                       .exported = Exported(*store)};
  listen.limits.message_budget = messages;
  listen.limits.max_chunk_bytes = std::min(listen.limits.max_chunk_bytes, store->max_chunk_bytes());
  listen.on_refused = [this](const Status& why) {
    serving->counters.sessions_refused[why.code()].Add();
    PENSTOCK_LOG(kWarn, "connection refused", {"op", "accept"}, {"status", why});
  };
  std::vector<EventLoop*> raw;
  for (const auto& loop : loops) raw.push_back(loop.get());
  for (const DaemonOptions::Listen& wish : options.listen) listen.addresses.push_back(wish.address);
  const OnSession on_session = [this](Session& session) { return Admit(session); };
  auto started = Listener::Start(listen, raw, on_session);
  for (const DaemonOptions::Listen& wish : options.listen) {
    if (started.ok() || !wish.optional) continue;
    // Without the optional ones, last first: they are conveniences.
    std::erase_if(listen.addresses, [&](const Address& address) {
      return address.ToString() == wish.address.ToString();
    });
    facts.start_up.push_back(fmt::format("not listening on {}: {}", wish.address.ToString(),
                                         started.status().message()));
    started = Listener::Start(listen, raw, on_session);
  }
  if (!started.ok()) return started.status();
  listener = std::move(*started);
  return Status::Ok();
}

std::unique_ptr<SessionEvents> Daemon::Parts::Admit(Session& session) {
  if (serving->draining.load(std::memory_order_relaxed)) return nullptr;
  const auto at = std::find_if(loops.begin(), loops.end(),
                               [&](const auto& loop) { return loop.get() == &session.loop(); });
  const bool internal = session.info().client_name == internal_name;
  return std::make_unique<ServedSession>(session, *serving,
                                         static_cast<uint32_t>(at - loops.begin()), internal);
}

Status Daemon::Parts::StartMetrics() {
  try {
    exposer =
        std::make_unique<prometheus::Exposer>(HostPort(options.metrics_host, options.metrics_port));
  } catch (const std::exception& error) {  // The library's only way to say it.
    return MetricsFailure(options.metrics_host, options.metrics_port, error.what());
  }
  exposer->RegisterCollectable(metrics);
  return Status::Ok();
}

void Daemon::Parts::Housekeep() {
  const ChunkStore::Maintenance done = store->Maintain();
  const HealthReport report = health->Report();
  admin->SetServing(report.live, report.ready);
  FlushSuppressedLogs();
  house->After(done.more ? std::chrono::milliseconds(1) : options.housekeeping,
               [this] { Housekeep(); });
}

void Daemon::Parts::TakeFacts() {
  facts.version = options.version;
  for (const Address& address : listener->addresses()) {
    facts.addresses.push_back(address.ToString());
  }
  facts.admin_address = admin->address();
  if (exposer != nullptr && !exposer->GetListeningPorts().empty()) {
    facts.metrics_address =
        HostPort(options.metrics_host, static_cast<uint16_t>(exposer->GetListeningPorts().front()));
  }
  facts.wires = options.wires;
  facts.data_threads = static_cast<uint32_t>(loops.size());
  facts.arena_reason = options.arena_reason;
  facts.start_up.insert(facts.start_up.begin(), options.start_up.begin(), options.start_up.end());
  facts.config = options.config;
}

Result<std::unique_ptr<Daemon>> Daemon::Start(DaemonOptions options) {
  std::unique_ptr<Daemon> daemon(new Daemon(std::make_unique<Parts>(std::move(options))));
  PENSTOCK_RETURN_IF_ERROR(daemon->parts_->Build());
  return daemon;
}

Daemon::Daemon(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Daemon::~Daemon() { Stop(Duration::zero()); }

bool Daemon::Stop(Duration grace) {
  Parts& parts = *parts_;
  if (parts.stopped) return parts.drained;
  parts.stopped = true;
  if (parts.health != nullptr) parts.health->SetEnding();
  if (parts.serving != nullptr) {
    parts.serving->draining = true;
    parts.drained = parts.serving->in_flight.WaitIdle(Deadline::After(grace));
  }
  if (parts.listener != nullptr) {
    parts.listener->Stop(Status(Code::kDisconnected, "the daemon is shutting down"));
  }
  // From the outside in: whoever uses something goes before it.
  parts.exposer.reset();
  if (parts.house != nullptr)
    parts.house->Stop();  // Housekeep() uses all that follows, and itself.
  parts.house.reset();
  parts.admin.reset();
  parts.admin_service.reset();
  parts.metrics.reset();
  parts.health.reset();
  parts.listener.reset();
  parts.workers.reset();
  parts.loops.clear();
  return parts.drained;
}

const DaemonFacts& Daemon::facts() const { return parts_->facts; }
std::vector<Address> Daemon::addresses() const { return parts_->listener->addresses(); }
HealthMonitor& Daemon::health() { return *parts_->health; }
Serving& Daemon::serving() { return *parts_->serving; }
const DaemonMetrics& Daemon::metrics() const { return *parts_->metrics; }

std::vector<EventLoop*> Daemon::data_loops() const {
  std::vector<EventLoop*> loops;
  for (const auto& loop : parts_->loops) loops.push_back(loop.get());
  return loops;
}

}  // namespace penstock
