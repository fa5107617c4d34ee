// AdminService: the administration interface (common/api/penstock_admin.proto) over one daemon.
//
// Runs on gRPC's own threads. It reads counters and the store's public interface, which are safe
// from any thread, and never touches what belongs to a data thread. Health() waits for nothing that
// the data path could hold up.

#ifndef PENSTOCK_SERVER_DAEMON_ADMIN_ADMIN_SERVICE_H_
#define PENSTOCK_SERVER_DAEMON_ADMIN_ADMIN_SERVICE_H_

#include <string>
#include <vector>

#include "common/api/penstock_admin.grpc.pb.h"
#include "common/base/deadline.h"
#include "common/keys/chunk_key.h"
#include "server/daemon/health/health_monitor.h"
#include "server/daemon/metrics/daemon_metrics.h"
#include "server/daemon/serving/serving.h"

namespace penstock {

// What a daemon tells of itself, fixed once it has started.
struct DaemonFacts {
  struct ConfigValue {
    std::string name, value, source;
  };
  std::string version;
  uint64_t incarnation = 0;
  MonotonicTime started;
  std::vector<std::string> addresses;
  std::string admin_address;
  std::string metrics_address;
  std::vector<std::string> wires;
  uint32_t data_threads = 0;
  std::string arena_reason;
  std::vector<std::string> start_up;
  std::vector<ConfigValue> config;
  Fingerprint internal_ns;
};

class AdminService final : public admin::v1::Admin::Service {
 public:
  // Everything outlives the service. `facts` is read only once requests come.
  AdminService(Serving& serving, HealthMonitor& health, const DaemonMetrics& metrics,
               const DaemonFacts& facts)
      : serving_(serving), health_(health), metrics_(metrics), facts_(facts) {}

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
  void FillArena(admin::v1::ArenaStatus& arena) const;
  Result<uint64_t> DropKey(const admin::v1::DropKey& key);
  Result<uint64_t> DropNamespace(const std::string& fingerprint);

  Serving& serving_;
  HealthMonitor& health_;
  const DaemonMetrics& metrics_;
  const DaemonFacts& facts_;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_ADMIN_ADMIN_SERVICE_H_
