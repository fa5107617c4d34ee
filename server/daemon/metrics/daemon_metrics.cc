#include "server/daemon/metrics/daemon_metrics.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "common/keys/namespace.h"
#include "common/log/log.h"
#include "fmt/format.h"
#include "server/daemon/metrics/family_builder.h"

namespace penstock {
namespace {

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

double ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  in >> size >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double CountEntries(const char* directory) {
  DIR* dir = opendir(directory);
  if (dir == nullptr) return 0;
  double count = 0;
  for (const dirent* entry = readdir(dir); entry != nullptr; entry = readdir(dir)) {
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(dir);
  return count;
}

void AddDaemon(const HealthReport& health, const std::string& version, Duration uptime,
               Families& out) {
  out.Add("penstock_build_info", 1, {{"version", version}});
  out.Add("penstock_uptime_seconds", Seconds(uptime));
  out.Add("penstock_health_live", health.live ? 1 : 0);
  out.Add("penstock_health_ready", health.ready ? 1 : 0);
  out.Add("penstock_health_degraded", health.degraded ? 1 : 0);
  out.Add("penstock_self_checks_total", static_cast<double>(health.checks - health.failed_checks),
          {{"outcome", "ok"}});
  out.Add("penstock_self_checks_total", static_cast<double>(health.failed_checks),
          {{"outcome", "failed"}});
  out.Add("penstock_self_check_seconds", Seconds(health.check_took));
  out.Add("penstock_data_thread_answer_seconds", Seconds(health.slowest_answer));
  out.Add("penstock_process_resident_bytes", ResidentBytes());
  // The directory that is being read is open too.
  out.Add("penstock_process_descriptors", std::max(CountEntries("/proc/self/fd") - 1, 0.0));
  out.Add("penstock_process_threads", CountEntries("/proc/self/task"));
  out.Add("penstock_log_lost_lines_total", static_cast<double>(LostLogLines()));
}

void AddRequests(const ServingCounters& c, Families& out) {
  out.Add("penstock_sessions", static_cast<double>(c.sessions.value()));
  out.Add("penstock_sessions_opened_total", static_cast<double>(c.sessions_opened.value()));
  out.AddCodes("penstock_sessions_closed_total", c.sessions_closed, "reason");
  out.AddCodes("penstock_connections_refused_total", c.sessions_refused, "reason");
  for (size_t i = 0; i < kRequestKinds; ++i) {
    out.AddCodes("penstock_requests_total", c.requests[i].replies, "status",
                 {{"request", RequestKindName(static_cast<RequestKind>(i))}});
  }
  for (size_t i = 0; i < kRequestKinds; ++i) {
    out.AddHistogram("penstock_request_duration_seconds", c.requests[i].latency,
                     {{"request", RequestKindName(static_cast<RequestKind>(i))}});
  }
  out.Add("penstock_cancels_total", static_cast<double>(c.cancels.value()));
  out.Add("penstock_in_flight", static_cast<double>(c.fetches_in_flight.value()),
          {{"request", "fetch"}});
  out.Add("penstock_in_flight", static_cast<double>(c.stores_in_flight.value()),
          {{"request", "store"}});
}

// Reasons of an outcome, without the OK that AddCodes() always shows.
void AddReasons(const char* name, const char* outcome, const CodeCounters& codes, Families& out) {
  for (uint16_t number = 1; number < kCodeCount; ++number) {
    const Code code = CodeFromWire(number);
    const uint64_t count = codes[code].value();
    if (count == 0) continue;
    out.Add(name, static_cast<double>(count),
            {{"outcome", outcome}, {"reason", std::string(CodeName(code))}});
  }
}

void AddTransfers(const Serving& serving, Families& out) {
  const ServingCounters& c = serving.counters;
  const auto value = [](const Counter& counter) { return static_cast<double>(counter.value()); };
  out.Add("penstock_store_items_total", value(c.store_committed),
          {{"outcome", "committed"}, {"reason", ""}});
  out.Add("penstock_store_items_total", value(c.store_exists),
          {{"outcome", "exists"}, {"reason", ""}});
  AddReasons("penstock_store_items_total", "refused", c.store_refused, out);
  AddReasons("penstock_store_items_total", "failed", c.store_failed, out);
  out.Add("penstock_store_bytes_total", value(c.store_committed_bytes));
  out.Add("penstock_store_pending_items", static_cast<double>(c.store_pending_items.value()));
  out.Add("penstock_discarded_data_frames_total", value(c.data_discarded));
  out.Add("penstock_discarded_data_bytes_total", value(c.data_discarded_bytes));
  out.Add("penstock_verify_queue", static_cast<double>(serving.workers.queued()));
  out.Add("penstock_fetch_items_total", value(c.fetch_delivered),
          {{"outcome", "delivered"}, {"reason", ""}});
  out.Add("penstock_fetch_items_total", value(c.fetch_missed),
          {{"outcome", "missed"}, {"reason", ""}});
  AddReasons("penstock_fetch_items_total", "refused", c.fetch_refused, out);
  AddReasons("penstock_fetch_items_total", "failed", c.fetch_failed, out);
  out.Add("penstock_fetch_bytes_total", value(c.fetch_delivered_bytes));
  out.Add("penstock_fetch_lost_reservations_total", value(c.fetch_lost_reservations));
  out.Add("penstock_fetch_held_chunks", static_cast<double>(c.fetch_held_chunks.value()));
  out.Add("penstock_fetch_held_bytes", static_cast<double>(serving.fetching.bytes()));
  out.Add("penstock_fetch_queued_bytes", static_cast<double>(c.fetch_queued_bytes.value()));
  out.Add("penstock_match_keys_total", value(c.match_keys));
  out.Add("penstock_matched_keys_total", value(c.matched_keys));
}

double Less(uint64_t all, uint64_t part) { return static_cast<double>(all - std::min(all, part)); }

void AddTier(const ChunkStoreStats& s, const NamespaceInfo& internal, Families& out) {
  const auto add = [&out](const char* name, uint64_t value) {
    out.Add(name, static_cast<double>(value));
  };
  add("penstock_arena_bytes", s.arena_bytes);
  add("penstock_arena_used_bytes", s.used_bytes);
  add("penstock_arena_free_bytes", s.free_bytes);
  add("penstock_arena_largest_free_bytes", s.largest_free_bytes);
  add("penstock_metadata_bytes", s.metadata_bytes);
  out.Add("penstock_chunks", Less(s.chunks, internal.chunks));
  out.Add("penstock_chunk_bytes", Less(s.chunk_bytes, internal.bytes));
  add("penstock_pending_chunks", s.pending_chunks);
  add("penstock_pending_bytes", s.pending_bytes);
  add("penstock_detached_chunks", s.detached_chunks);
  add("penstock_detached_bytes", s.detached_bytes);
  add("penstock_pinned_chunks", s.pinned_chunks);
  add("penstock_pinned_bytes", s.pinned_bytes);
  add("penstock_reservations", s.reservations);
  add("penstock_reserved_chunks", s.reserved_chunks);
  add("penstock_reserved_bytes", s.reserved_bytes);
  add("penstock_reservations_made_total", s.reservations_made);
  const auto by = [&out](const char* name, const char* how, uint64_t value) {
    out.Add(name, static_cast<double>(value), {{"how", how}});
  };
  by("penstock_reservations_ended_total", "released", s.reservations_released);
  by("penstock_reservations_ended_total", "expired", s.reservations_expired);
  by("penstock_reservations_ended_total", "revoked", s.reservations_revoked);
  add("penstock_reservations_refused_total", s.reservations_refused);
  by("penstock_removed_chunks_total", "evicted", s.evicted_chunks);
  by("penstock_removed_chunks_total", "dropped", s.dropped_chunks);
  by("penstock_removed_chunks_total", "replaced", s.replaced_chunks);
  add("penstock_damaged_chunks_total", s.damaged_chunks);
  by("penstock_removed_bytes_total", "evicted", s.evicted_bytes);
  by("penstock_removed_bytes_total", "dropped", s.dropped_bytes);
  by("penstock_removed_bytes_total", "replaced", s.replaced_bytes);
}

// The namespaces, those without a slot of their own added up as "other".
struct LabelledNamespace {
  std::string label, tenant, model;
  uint64_t chunks = 0, bytes = 0;
  const NamespaceCounters* counters = nullptr;
};

LabelledNamespace Describe(const NamespaceInfo& info, const ServingCounters& c) {
  LabelledNamespace row{.label = info.fingerprint.ToHex().substr(0, 16)};
  row.chunks = info.chunks;
  row.bytes = info.bytes;
  row.counters = &c.namespaces[ServingCounters::Slot(info.id)];
  if (const auto descriptor = NamespaceDescriptor::Decode(info.descriptor); descriptor.ok()) {
    row.tenant = descriptor->tenant;
    row.model = descriptor->model;
  }
  return row;
}

void AddNamespaces(const std::vector<NamespaceInfo>& infos, const Fingerprint& internal,
                   const ServingCounters& c, Families& out) {
  std::vector<LabelledNamespace> rows;
  LabelledNamespace other{.label = "other", .counters = &c.namespaces[0]};
  double count = 0;
  for (const NamespaceInfo& info : infos) {
    if (info.fingerprint == internal) continue;
    ++count;
    if (ServingCounters::Slot(info.id) != 0) {
      rows.push_back(Describe(info, c));
    } else {
      other.chunks += info.chunks;
      other.bytes += info.bytes;
    }
  }
  rows.push_back(std::move(other));
  out.Add("penstock_namespaces", count);
  for (const auto& row : rows) {
    out.Add("penstock_namespace_info", 1,
            {{"namespace", row.label}, {"tenant", row.tenant}, {"model", row.model}});
  }
  const auto column = [&](const char* name, const auto& get) {
    for (const auto& row : rows) {
      out.Add(name, static_cast<double>(get(row)), {{"namespace", row.label}});
    }
  };
  column("penstock_namespace_chunks", [](const auto& row) { return row.chunks; });
  column("penstock_namespace_chunk_bytes", [](const auto& row) { return row.bytes; });
  column("penstock_namespace_stored_chunks_total",
         [](const auto& row) { return row.counters->committed.value(); });
  column("penstock_namespace_stored_bytes_total",
         [](const auto& row) { return row.counters->committed_bytes.value(); });
  column("penstock_namespace_fetched_chunks_total",
         [](const auto& row) { return row.counters->delivered.value(); });
  column("penstock_namespace_fetched_bytes_total",
         [](const auto& row) { return row.counters->delivered_bytes.value(); });
  column("penstock_namespace_missed_chunks_total",
         [](const auto& row) { return row.counters->missed.value(); });
}

std::string FlatName(const std::string& name, const prometheus::ClientMetric& metric) {
  if (metric.label.empty()) return name;
  std::string text = name + "{";
  for (size_t i = 0; i < metric.label.size(); ++i) {
    text +=
        fmt::format("{}{}=\"{}\"", i == 0 ? "" : ",", metric.label[i].name, metric.label[i].value);
  }
  return text + "}";
}

}  // namespace

std::vector<prometheus::MetricFamily> DaemonMetrics::Collect() const {
  Families out;
  const Serving& serving = sources_.serving;
  const ServingCounters& c = serving.counters;
  AddDaemon(sources_.health(), sources_.version, MonotonicNow() - sources_.started, out);
  AddRequests(c, out);
  out.Add("penstock_message_bytes", static_cast<double>(sources_.messages.bytes()));
  AddTransfers(serving, out);
  const NamespaceId internal_id = serving.store.FindNamespace(sources_.internal_ns);
  const NamespaceInfo internal = serving.store.GetNamespace(internal_id).value_or(NamespaceInfo{});
  AddTier(serving.store.Stats(), internal, out);
  AddNamespaces(serving.store.ListNamespaces(), sources_.internal_ns, c, out);
  return out.Take();
}

std::vector<std::pair<std::string, double>> DaemonMetrics::Flat() const {
  std::vector<std::pair<std::string, double>> flat;
  for (const prometheus::MetricFamily& family : Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      switch (family.type) {
        case prometheus::MetricType::Counter:
          flat.emplace_back(FlatName(family.name, metric), metric.counter.value);
          break;
        case prometheus::MetricType::Histogram:
          flat.emplace_back(FlatName(family.name + "_count", metric),
                            static_cast<double>(metric.histogram.sample_count));
          flat.emplace_back(FlatName(family.name + "_sum", metric), metric.histogram.sample_sum);
          break;
        default:
          flat.emplace_back(FlatName(family.name, metric), metric.gauge.value);
      }
    }
  }
  return flat;
}

}  // namespace penstock
