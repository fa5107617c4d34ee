#include "client/cli/admin.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <chrono>

#include "common/api/penstock_admin.grpc.pb.h"

namespace penstock::cli {

struct Admin::Stub {
  std::string address;
  std::unique_ptr<admin::v1::Admin::Stub> stub;

  template <typename Request, typename Reply>
  using Method = grpc::Status (admin::v1::Admin::Stub::*)(grpc::ClientContext*, const Request&,
                                                          Reply*);

  template <typename Request, typename Reply>
  Result<Reply> Call(Method<Request, Reply> method, const Request& request,
                     const Deadline& deadline) {
    grpc::ClientContext context;
    // gRPC's own deadlines are of the wall clock; its timer runs on what is left now.
    gpr_timespec left = gpr_time_from_nanos(deadline.Left().count(), GPR_TIMESPAN);
    context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), left));
    Reply reply;
    const grpc::Status status = (stub.get()->*method)(&context, request, &reply);
    if (status.ok()) return reply;
    const Code code =
        status.error_code() == grpc::StatusCode::UNAVAILABLE         ? Code::kDisconnected
        : status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ? Code::kDeadlineExceeded
        : status.error_code() == grpc::StatusCode::INVALID_ARGUMENT  ? Code::kInvalidArgument
        : status.error_code() == grpc::StatusCode::UNIMPLEMENTED     ? Code::kUnimplemented
                                                                     : Code::kInternal;
    return Status(code, fmt::format("administration at {}: {}", address, status.error_message()));
  }
};

Admin::Admin(const std::string& address) : stub_(std::make_unique<Stub>()) {
  stub_->address = address;
  stub_->stub =
      admin::v1::Admin::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
}

Admin::~Admin() = default;

Result<admin::v1::HealthReply> Admin::Health(bool fresh, const Deadline& deadline) {
  admin::v1::HealthRequest request;
  request.set_fresh(fresh);
  return stub_->Call<admin::v1::HealthRequest, admin::v1::HealthReply>(
      &admin::v1::Admin::Stub::Health, request, deadline);
}

Result<admin::v1::StatusReply> Admin::GetStatus(const Deadline& deadline) {
  return stub_->Call<admin::v1::StatusRequest, admin::v1::StatusReply>(
      &admin::v1::Admin::Stub::Status, {}, deadline);
}

Result<admin::v1::NamespacesReply> Admin::Namespaces(const Deadline& deadline) {
  return stub_->Call<admin::v1::NamespacesRequest, admin::v1::NamespacesReply>(
      &admin::v1::Admin::Stub::Namespaces, {}, deadline);
}

Result<admin::v1::SessionsReply> Admin::Sessions(const Deadline& deadline) {
  return stub_->Call<admin::v1::SessionsRequest, admin::v1::SessionsReply>(
      &admin::v1::Admin::Stub::Sessions, {}, deadline);
}

bool IsSameDaemon(const admin::v1::StatusReply& status, uint64_t incarnation) {
  return status.incarnation() == fmt::format("{:016x}", incarnation);
}

}  // namespace penstock::cli
