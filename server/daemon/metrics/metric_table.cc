#include "server/daemon/metrics/metric_table.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace penstock {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter;
constexpr MetricKind kGauge = MetricKind::kGauge;
constexpr MetricKind kHistogram = MetricKind::kHistogram;

constexpr MetricDef kMetrics[] = {
    // The daemon.
    {"penstock_build_info", kGauge, "version", "Always 1; the version is in the label."},
    {"penstock_uptime_seconds", kGauge, "", "Since the daemon started, by the monotonic clock."},
    {"penstock_health_live", kGauge, "", "1 unless nothing but a restart helps."},
    {"penstock_health_ready", kGauge, "", "1 while the self-check over the data path succeeds."},
    {"penstock_health_degraded", kGauge, "", "1 when it serves, but not as well as it should."},
    {"penstock_self_checks_total", kCounter, "outcome", "Self-checks that ended: ok or failed."},
    {"penstock_self_check_seconds", kGauge, "", "How long the latest self-check took."},
    {"penstock_data_thread_answer_seconds", kGauge, "",
     "How long the slowest data thread took, or has been taking, to give a sign of life."},
    {"penstock_process_resident_bytes", kGauge, "", "Resident memory of the process."},
    {"penstock_process_descriptors", kGauge, "", "Open file descriptors of the process."},
    {"penstock_process_threads", kGauge, "", "Threads of the process."},
    {"penstock_log_lost_lines_total", kCounter, "",
     "Log lines dropped because standard error did not take them in time."},
    // Sessions and requests.
    {"penstock_sessions", kGauge, "", "Sessions that are open."},
    {"penstock_sessions_opened_total", kCounter, "", "Sessions that were ever opened."},
    {"penstock_sessions_closed_total", kCounter, "reason", "Sessions that ended, by why."},
    {"penstock_connections_refused_total", kCounter, "reason",
     "Connections that never became a session, by why: garbage, version skew, no hello in time."},
    {"penstock_requests_total", kCounter, "request,status",
     "Requests that were answered, by the status of the reply; unknown and reserved types too."},
    {"penstock_request_duration_seconds", kHistogram, "request",
     "From a request's arrival to the end of its work, the transfer of its bytes included."},
    {"penstock_message_bytes", kGauge, "",
     "Messages that are half here or not yet sent, beyond 64 KiB a session; limits.message_memory "
     "bounds them."},
    {"penstock_cancels_total", kCounter, "", "CANCEL messages."},
    {"penstock_in_flight", kGauge, "request", "FETCH and STORE requests being worked on."},
    // Storing.
    {"penstock_store_items_total", kCounter, "outcome,reason",
     "Chunks offered by STORE: committed, exists, refused (never granted space) or failed (granted "
     "and lost). Their sum is every chunk ever offered."},
    {"penstock_store_bytes_total", kCounter, "", "Bytes of committed chunks."},
    {"penstock_store_pending_items", kGauge, "", "Chunks granted and not final."},
    {"penstock_discarded_data_frames_total", kCounter, "",
     "DATA that belonged to nothing: a request that is over or unknown, or wrong bytes."},
    {"penstock_discarded_data_bytes_total", kCounter, "", "Bytes of those."},
    {"penstock_verify_queue", kGauge, "", "Chunks waiting for a thread that checks them."},
    // Fetching.
    {"penstock_fetch_items_total", kCounter, "outcome,reason",
     "Chunks asked for by FETCH: delivered (all bytes taken by the wire), missed, refused (there, "
     "but not for this reader or buffer) or failed (promised and not delivered)."},
    {"penstock_fetch_bytes_total", kCounter, "", "Bytes of delivered chunks."},
    {"penstock_fetch_lost_reservations_total", kCounter, "",
     "FETCH requests that named a reservation which was not there any more."},
    {"penstock_fetch_held_chunks", kGauge, "", "Chunks that fetches keep from being reused."},
    {"penstock_fetch_held_bytes", kGauge, "",
     "Payload bytes of those, each chunk once; store.max_fetching_percent bounds them."},
    {"penstock_fetch_queued_bytes", kGauge, "", "Bytes given to the wire and not yet taken."},
    {"penstock_match_keys_total", kCounter, "", "Keys asked for by MATCH, in every group."},
    {"penstock_matched_keys_total", kCounter, "", "Keys that were part of an answer to MATCH."},
    // The dram tier.
    {"penstock_arena_bytes", kGauge, "", "Size of the arena."},
    {"penstock_arena_used_bytes", kGauge, "", "Taken, rounding included."},
    {"penstock_arena_free_bytes", kGauge, "", "Not taken."},
    {"penstock_arena_largest_free_bytes", kGauge, "", "Longest run that is not taken."},
    {"penstock_metadata_bytes", kGauge, "", "Estimate of manifests and index entries."},
    {"penstock_chunks", kGauge, "", "Committed chunks."},
    {"penstock_chunk_bytes", kGauge, "", "Payload bytes of committed chunks."},
    {"penstock_pending_chunks", kGauge, "", "Chunks with space that are not committed yet."},
    {"penstock_pending_bytes", kGauge, "", "Payload bytes of those."},
    {"penstock_detached_chunks", kGauge, "", "Dropped or evicted, and still being read."},
    {"penstock_detached_bytes", kGauge, "", "Payload bytes of those."},
    {"penstock_pinned_chunks", kGauge, "", "Chunks with a pin."},
    {"penstock_pinned_bytes", kGauge, "", "Payload bytes of those."},
    {"penstock_reservations", kGauge, "", "Reservations that are held."},
    {"penstock_reserved_chunks", kGauge, "", "Chunks that reservations hold, each counted once."},
    {"penstock_reserved_bytes", kGauge, "", "Payload bytes of those."},
    {"penstock_reservations_made_total", kCounter, "", "Reservations that were ever made."},
    {"penstock_reservations_ended_total", kCounter, "how",
     "Reservations that ended: released (by their session, or at its end), expired, revoked."},
    {"penstock_reservations_refused_total", kCounter, "", "Beyond the budget for reservations."},
    {"penstock_removed_chunks_total", kCounter, "how", "evicted, dropped or replaced."},
    {"penstock_damaged_chunks_total", kCounter, "",
     "Of the dropped: their bytes had changed in the arena. Anything but 0 means bad memory."},
    {"penstock_removed_bytes_total", kCounter, "how", "Payload bytes of those."},
    // Namespaces.
    {"penstock_namespaces", kGauge, "", "Namespaces that were opened."},
    {"penstock_namespace_info", kGauge, "namespace,tenant,model",
     "Always 1; what a namespace label stands for. At most 64 namespaces have labels of their own, "
     "the first that were opened; the others share namespace=\"other\"."},
    {"penstock_namespace_chunks", kGauge, "namespace", "Committed chunks."},
    {"penstock_namespace_chunk_bytes", kGauge, "namespace", "Payload bytes of those."},
    {"penstock_namespace_stored_chunks_total", kCounter, "namespace", "Chunks ever committed."},
    {"penstock_namespace_stored_bytes_total", kCounter, "namespace", "Payload bytes of those."},
    {"penstock_namespace_fetched_chunks_total", kCounter, "namespace", "Chunks delivered."},
    {"penstock_namespace_fetched_bytes_total", kCounter, "namespace", "Bytes delivered."},
    {"penstock_namespace_missed_chunks_total", kCounter, "namespace", "Asked for and not there."},
};

}  // namespace

std::span<const MetricDef> AllMetrics() { return kMetrics; }

const MetricDef& FindMetric(const char* name) {
  for (const MetricDef& def : kMetrics) {
    if (std::strcmp(def.name, name) == 0) return def;
  }
  std::fprintf(stderr, "metric %s is not in metric_table.cc\n", name);
  std::abort();
}

}  // namespace penstock
