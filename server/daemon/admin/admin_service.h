// AdminService: the administration interface (common/api/penstock_admin.proto) over one daemon.
//
// Runs on gRPC's own threads. It reads counters and the store's public interface, which are safe
// from any thread, and never touches what belongs to a data thread. Health() waits for nothing that
// the data path could hold up.

#ifndef PENSTOCK_SERVER_DAEMON_ADMIN_ADMIN_SERVICE_H_
#define PENSTOCK_SERVER_DAEMON_ADMIN_ADMIN_SERVICE_H_

#include <atomic>
#include <string>
#include <vector>

#include "common/api/penstock_admin.grpc.pb.h"
#include "server/daemon/admin/daemon_facts.h"
#include "server/daemon/health/health_monitor.h"
#include "server/daemon/metrics/daemon_metrics.h"
#include "server/daemon/serving/serving.h"

namespace penstock {

class AdminService final : public admin::v1::Admin::Service {
 public:
  // Everything outlives the service. `facts` may be filled in until Publish(); before that, all
  // calls but Health() are answered with UNAVAILABLE.
  AdminService(Serving& serving, HealthMonitor& health, const DaemonMetrics& metrics,
               const DaemonFacts& facts)
      : serving_(serving), health_(health), metrics_(metrics), facts_(facts) {}

  // The facts are complete.
  void Publish() { published_.store(true, std::memory_order_release); }

  grpc::Status Health(grpc::ServerContext* context, const admin::v1::HealthRequest* request,
                      admin::v1::HealthReply* reply) override;
  grpc::Status Status(grpc::ServerContext* context, const admin::v1::StatusRequest* request,
                      admin::v1::StatusReply* reply) override;
  grpc::Status Namespaces(grpc::ServerContext* context, const admin::v1::NamespacesRequest* request,
                          admin::v1::NamespacesReply* reply) override;
  grpc::Status Sessions(grpc::ServerContext* context, const admin::v1::SessionsRequest* request,
                        admin::v1::SessionsReply* reply) override;
  grpc::Status Drop(grpc::ServerContext* context, const admin::v1::DropRequest* request,
                    admin::v1::DropReply* reply) override;
  grpc::Status SetLogLevel(grpc::ServerContext* context,
                           const admin::v1::SetLogLevelRequest* request,
                           admin::v1::SetLogLevelReply* reply) override;

 private:
  bool published() const { return published_.load(std::memory_order_acquire); }
  void FillArena(admin::v1::ArenaStatus& arena) const;
  Result<uint64_t> DropKey(const admin::v1::DropKey& key);
  Result<uint64_t> DropNamespace(const std::string& fingerprint);

  Serving& serving_;
  HealthMonitor& health_;
  const DaemonMetrics& metrics_;
  const DaemonFacts& facts_;
  std::atomic<bool> published_{false};
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_ADMIN_ADMIN_SERVICE_H_
