// The UCX library, loaded when the first ucx wire is wanted and not before: a process that uses
// only sockets gets none of UCX's threads, memory hooks and signal handlers, and runs where UCX is
// not installed.

#ifndef PENSTOCK_COMMON_TRANSPORT_UCX_LIBRARY_H_
#define PENSTOCK_COMMON_TRANSPORT_UCX_LIBRARY_H_

#include <ucp/api/ucp.h>

#include <string>

#include "common/base/status.h"

namespace penstock {

// Every function of UCX that Penstock calls.
#define PENSTOCK_UCP_FUNCTIONS(X)   \
  X(ucp_get_version_string)         \
  X(ucp_config_read)                \
  X(ucp_config_modify)              \
  X(ucp_config_release)             \
  X(ucp_init_version)               \
  X(ucp_context_print_info)         \
  X(ucp_cleanup)                    \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_progress)            \
  X(ucp_worker_get_efd)             \
  X(ucp_worker_arm)                 \
  X(ucp_worker_set_am_recv_handler) \
  X(ucp_listener_create)            \
  X(ucp_listener_query)             \
  X(ucp_listener_destroy)           \
  X(ucp_listener_reject)            \
  X(ucp_ep_create)                  \
  X(ucp_ep_close_nbx)               \
  X(ucp_am_send_nbx)                \
  X(ucp_am_recv_data_nbx)           \
  X(ucp_request_check_status)       \
  X(ucp_request_free)               \
  X(ucp_mem_map)                    \
  X(ucp_mem_unmap)

struct UcxLibrary {
#define PENSTOCK_UCX_DECLARE(name) decltype(&::name) name = nullptr;
  PENSTOCK_UCP_FUNCTIONS(PENSTOCK_UCX_DECLARE)
#undef PENSTOCK_UCX_DECLARE
  decltype(&::ucs_status_string) ucs_status_string = nullptr;

  // Loads the library, once a process; it stays until the process ends. Thread-safe.
  // Errors: kUnimplemented saying what is missing.
  static Result<const UcxLibrary*> Load();
};

// "ucx: Destination is unreachable", as kDisconnected, kResourceExhausted and so on.
Status UcxStatus(const UcxLibrary& ucx, ucs_status_t status, std::string_view doing);

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_UCX_LIBRARY_H_
