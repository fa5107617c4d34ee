// AdminServer: the gRPC server around the AdminService, and gRPC's standard health service beside
// it ("" is readiness, "live" is liveness), for probes that speak only that.

#ifndef PENSTOCK_SERVER_DAEMON_ADMIN_ADMIN_SERVER_H_
#define PENSTOCK_SERVER_DAEMON_ADMIN_ADMIN_SERVER_H_

#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "common/base/status.h"
#include "server/daemon/admin/admin_service.h"

namespace penstock {

class AdminServer {
 public:
  // Serves at `host`:`port`; port 0: the kernel chooses. `service` outlives the server.
  // Errors: kIoError naming the address and, where it can be told, who holds it.
  static Result<std::unique_ptr<AdminServer>> Start(const std::string& host, uint16_t port,
                                                    AdminService& service);
  // Stops: calls under way get a moment to finish.
  ~AdminServer();
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  // "127.0.0.1:40123", with the real port.
  const std::string& address() const { return address_; }
  // What the standard health service answers.
  void SetServing(bool live, bool ready);

 private:
  AdminServer(std::unique_ptr<grpc::Server> server, std::string address)
      : server_(std::move(server)), address_(std::move(address)) {}

  const std::unique_ptr<grpc::Server> server_;
  const std::string address_;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_ADMIN_ADMIN_SERVER_H_
