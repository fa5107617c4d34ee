#include "server/daemon/admin/admin_service.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/keys/namespace.h"
#include "common/log/log.h"
#include "fmt/format.h"

namespace penstock {
namespace {

uint64_t Millis(Duration duration) {
  const auto count = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return static_cast<uint64_t>(std::max<int64_t>(count, 0));
}

grpc::StatusCode RpcCode(Code code) {
  switch (code) {
    case Code::kOk:
      return grpc::StatusCode::OK;
    case Code::kInvalidArgument:
    case Code::kCorruptMessage:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case Code::kMiss:
    case Code::kFormatMismatch:
      return grpc::StatusCode::NOT_FOUND;
    default:
      return grpc::StatusCode::INTERNAL;
  }
}

grpc::Status ToRpc(const Status& status) {
  return {RpcCode(status.code()), status.ok() ? std::string() : status.ToString()};
}

grpc::Status Starting() { return {grpc::StatusCode::UNAVAILABLE, "the daemon is still starting"}; }

Result<Digest256> ParseDigest(const std::string& hex, std::string_view what) {
  auto digest = Digest256::FromHex(hex);
  if (digest.ok()) return digest;
  return Status(Code::kInvalidArgument,
                fmt::format("{} must be 64 hexadecimal digits, not '{}'", what, hex.substr(0, 80)));
}

}  // namespace

grpc::Status AdminService::Health(grpc::ServerContext*, const admin::v1::HealthRequest* request,
                                  admin::v1::HealthReply* reply) {
  const HealthReport report = request->fresh() ? health_.Check() : health_.Report();
  reply->set_live(report.live);
  reply->set_ready(report.ready);
  reply->set_degraded(report.degraded);
  for (const HealthReport::Reason& reason : report.reasons) {
    auto* added = reply->add_reasons();
    added->set_what(reason.what);
    added->set_detail(reason.detail);
  }
  reply->set_self_check_age_ms(Millis(report.check_age));
  reply->set_self_check_took_us(static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(report.check_took).count()));
  reply->set_self_checks(report.checks);
  reply->set_self_checks_failed(report.failed_checks);
  return grpc::Status::OK;
}

void AdminService::FillArena(admin::v1::ArenaStatus& arena) const {
  const ChunkStoreStats stats = serving_.store.Stats();
  arena.set_capacity_bytes(stats.arena_bytes);
  arena.set_used_bytes(stats.used_bytes);
  arena.set_chunk_bytes(stats.chunk_bytes);
  arena.set_pinned_bytes(stats.pinned_bytes);
  arena.set_reserved_bytes(stats.reserved_bytes);
  arena.set_chunks(stats.chunks);
  arena.set_pending_chunks(stats.pending_chunks);
  arena.set_reservations(stats.reservations);
  arena.set_evicted_chunks(stats.evicted_chunks);
  arena.set_chosen_because(facts_.arena_reason);
}

grpc::Status AdminService::Status(grpc::ServerContext*, const admin::v1::StatusRequest*,
                                  admin::v1::StatusReply* reply) {
  if (!published()) return Starting();
  reply->set_version(facts_.version);
  reply->set_incarnation(fmt::format("{:016x}", facts_.incarnation));
  reply->set_uptime_ms(Millis(MonotonicNow() - facts_.started));
  reply->set_pid(static_cast<uint64_t>(getpid()));
  for (const std::string& address : facts_.addresses) reply->add_addresses(address);
  reply->set_admin_address(facts_.admin_address);
  reply->set_metrics_address(facts_.metrics_address);
  for (const std::string& wire : facts_.wires) reply->add_wires(wire);
  reply->set_data_threads(facts_.data_threads);
  const ServingCounters& counters = serving_.counters;
  reply->set_sessions(static_cast<uint32_t>(std::max<int64_t>(counters.sessions.value(), 0)));
  reply->set_in_flight(serving_.in_flight.count());
  FillArena(*reply->mutable_arena());
  for (const auto& [name, value] : metrics_.Flat()) {
    auto* counter = reply->add_counters();
    counter->set_name(name);
    counter->set_value(value);
  }
  for (const DaemonFacts::ConfigValue& value : facts_.config) {
    auto* added = reply->add_config();
    added->set_name(value.name);
    added->set_value(value.value);
    added->set_source(value.source);
  }
  for (const std::string& line : facts_.start_up) reply->add_start_up(line);
  reply->set_draining(serving_.draining.load());
  reply->set_log_level(std::string(LogLevelName(GetLogLevel())));
  return grpc::Status::OK;
}

grpc::Status AdminService::Namespaces(grpc::ServerContext*,
                                      const admin::v1::NamespacesRequest* request,
                                      admin::v1::NamespacesReply* reply) {
  if (!published()) return Starting();
  for (const NamespaceInfo& info : serving_.store.ListNamespaces()) {
    const bool internal = info.fingerprint == facts_.internal_ns;
    if (internal && !request->include_internal()) continue;
    auto* added = reply->add_namespaces();
    added->set_fingerprint(info.fingerprint.ToHex());
    added->set_chunks(info.chunks);
    added->set_bytes(info.bytes);
    added->set_internal(internal);
    const auto descriptor = NamespaceDescriptor::Decode(info.descriptor);
    if (!descriptor.ok()) continue;
    added->set_descriptor_json(descriptor->ToJson());
    added->set_tenant(descriptor->tenant);
  }
  return grpc::Status::OK;
}

grpc::Status AdminService::Sessions(grpc::ServerContext*, const admin::v1::SessionsRequest* request,
                                    admin::v1::SessionsReply* reply) {
  if (!published()) return Starting();
  const MonotonicTime now = MonotonicNow();
  for (const auto& record : serving_.directory.List()) {
    if (record->internal && !request->include_internal()) continue;
    auto* added = reply->add_sessions();
    added->set_id(record->id);
    added->set_peer(record->info.peer_address);
    added->set_name(record->info.client_name);
    added->set_tenant(record->info.tenant);
    added->set_software(record->info.peer_software);
    added->set_wire(record->info.wire);
    added->set_streams(record->info.streams);
    added->set_age_ms(Millis(now - record->opened));
    added->set_idle_ms(Millis(now.time_since_epoch() - Duration(record->latest_message_ns.load())));
    added->set_in_flight(static_cast<uint32_t>(std::max<int64_t>(record->in_flight.value(), 0)));
    added->set_requests(record->requests.value());
    added->set_stored_bytes(record->stored_bytes.value());
    added->set_fetched_bytes(record->fetched_bytes.value());
    added->set_queued_bytes(record->queued_bytes.load());
    added->set_reservations(
        static_cast<uint32_t>(std::max<int64_t>(record->reservations.value(), 0)));
    added->set_data_thread(record->data_thread);
    added->set_internal(record->internal);
  }
  return grpc::Status::OK;
}

Result<uint64_t> AdminService::DropKey(const admin::v1::DropKey& key) {
  PENSTOCK_ASSIGN_OR_RETURN(const Fingerprint ns,
                            ParseDigest(key.namespace_fingerprint(), "namespace_fingerprint"));
  PENSTOCK_ASSIGN_OR_RETURN(const ChunkKey chunk, ParseDigest(key.key(), "key"));
  const NamespaceId id = serving_.store.FindNamespace(ns);
  if (id == NamespaceId::kNone) return penstock::Status(Code::kMiss, "no such namespace");
  PENSTOCK_RETURN_IF_ERROR(serving_.store.Drop(chunk, id));
  return uint64_t{1};
}

Result<uint64_t> AdminService::DropNamespace(const std::string& fingerprint) {
  PENSTOCK_ASSIGN_OR_RETURN(const Fingerprint ns,
                            ParseDigest(fingerprint, "namespace_fingerprint"));
  const NamespaceId id = serving_.store.FindNamespace(ns);
  if (id == NamespaceId::kNone) return penstock::Status(Code::kMiss, "no such namespace");
  return uint64_t{serving_.store.DropNamespace(id)};
}

grpc::Status AdminService::Drop(grpc::ServerContext* context, const admin::v1::DropRequest* request,
                                admin::v1::DropReply* reply) {
  if (!published()) return Starting();
  Result<uint64_t> dropped = penstock::Status(Code::kInvalidArgument, "nothing was named to drop");
  switch (request->what_case()) {
    case admin::v1::DropRequest::kKey:
      dropped = DropKey(request->key());
      break;
    case admin::v1::DropRequest::kNamespaceFingerprint:
      dropped = DropNamespace(request->namespace_fingerprint());
      break;
    case admin::v1::DropRequest::kEverything:
      if (request->everything()) dropped = uint64_t{serving_.store.Clear()};
      break;
    case admin::v1::DropRequest::WHAT_NOT_SET:
      break;
  }
  if (!dropped.ok()) return ToRpc(dropped.status());
  reply->set_dropped_chunks(*dropped);
  PENSTOCK_LOG(kInfo, "chunks dropped by an administrator", {"op", "drop"}, {"chunks", *dropped},
               {"peer", context->peer()});
  return grpc::Status::OK;
}

grpc::Status AdminService::SetLogLevel(grpc::ServerContext*,
                                       const admin::v1::SetLogLevelRequest* request,
                                       admin::v1::SetLogLevelReply* reply) {
  const auto level = ParseLogLevel(request->level());
  if (!level.ok()) return ToRpc(level.status());
  reply->set_previous(std::string(LogLevelName(GetLogLevel())));
  penstock::SetLogLevel(*level);
  return grpc::Status::OK;
}

}  // namespace penstock
