#include "server/daemon/admin/admin_server.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <utility>

#include "common/log/log.h"
#include "common/transport/socket.h"
#include "common/transport/socket_owner.h"
#include "fmt/format.h"

namespace penstock {
namespace {

// Enough for a stuck call or two beside a health probe.
constexpr int kMaxThreads = 8;
constexpr int kMaxMessageBytes = 64 << 10;  // Of a request; replies may be as long as they are.

// gRPC writes to standard error by itself, as much as it likes.
void TakeOverGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args* args) {
    PENSTOCK_LOG(kWarn, "grpc", {"says", args->message}, {"at", args->file}, {"line", args->line});
  });
}

std::string HostPort(const std::string& host, int port) {
  return host.find(':') == host.npos ? fmt::format("{}:{}", host, port)
                                     : fmt::format("[{}]:{}", host, port);
}

Status BindFailure(const std::string& host, uint16_t port) {
  std::string text =
      fmt::format("the administration address {} cannot be bound", HostPort(host, port));
  const auto resolved = Resolve({.host = host, .port = port}, /*passive=*/true);
  for (size_t i = 0; resolved.ok() && i < resolved->size(); ++i) {
    const std::string owner = DescribeSocketOwner((*resolved)[i]);
    if (!owner.empty()) text += ": it is held by " + owner;
  }
  return Status(Code::kIoError, text + " (choose another with admin.address)");
}

}  // namespace

Result<std::unique_ptr<AdminServer>> AdminServer::Start(const std::string& host, uint16_t port,
                                                        AdminService& service) {
  TakeOverGrpcLog();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ResourceQuota quota("penstock-admin");
  quota.SetMaxThreads(kMaxThreads);
  grpc::ServerBuilder builder;
  // By default gRPC lets a second process bind the same port, and requests then reach either.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  int bound = 0;
  builder.AddListeningPort(HostPort(host, port), grpc::InsecureServerCredentials(), &bound);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || bound == 0) return BindFailure(host, port);
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(server), HostPort(host, bound)));
}

AdminServer::~AdminServer() {
  server_->Shutdown(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(500, GPR_TIMESPAN)));
}

void AdminServer::SetServing(bool live, bool ready) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  if (health == nullptr) return;
  health->SetServingStatus("", ready);
  health->SetServingStatus("live", live);
}

}  // namespace penstock
