// The one UCX context of the process: its devices, its configuration, and the memory registered
// with it.

#ifndef PENSTOCK_COMMON_TRANSPORT_UCX_CONTEXT_H_
#define PENSTOCK_COMMON_TRANSPORT_UCX_CONTEXT_H_

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/transport/endpoint.h"
#include "common/transport/ucx_library.h"

namespace penstock {

class UcxContext {
 public:
  // Made by the first call, whose `config` counts; lives until the process ends. Thread-safe.
  // Errors: kUnimplemented without the library, kResourceExhausted, kInvalidArgument.
  static Result<UcxContext*> Get(const UcxConfig& config);

  const UcxLibrary& ucx() const { return ucx_; }
  ucp_context_h handle() const { return handle_; }

  // "1.13.1"
  std::string version() const { return ucx_.ucp_get_version_string(); }
  // "rc_mlx5/mlx5_0:1", "tcp/eth0", "posix/memory", ...
  std::vector<std::string> Transports() const;

 private:
  UcxContext(const UcxLibrary& ucx, ucp_context_h handle) : ucx_(ucx), handle_(handle) {}
  static Result<UcxContext*> Make(const UcxConfig& config);

  const UcxLibrary& ucx_;
  const ucp_context_h handle_;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_UCX_CONTEXT_H_
