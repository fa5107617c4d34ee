// The administration service of a daemon, as the commands need it.

#ifndef PENSTOCK_CLIENT_CLI_ADMIN_H_
#define PENSTOCK_CLIENT_CLI_ADMIN_H_

#include <memory>
#include <string>

#include "common/api/penstock_admin.pb.h"
#include "common/base/deadline.h"
#include "common/base/status.h"

namespace penstock::cli {

class Admin {
 public:
  // "host:port". Connects with the first call.
  explicit Admin(const std::string& address);
  ~Admin();

  // Errors: kDisconnected (nobody answers there), kDeadlineExceeded, and what the daemon says.
  Result<admin::v1::HealthReply> Health(bool fresh, const Deadline& deadline);
  Result<admin::v1::StatusReply> GetStatus(const Deadline& deadline);
  Result<admin::v1::NamespacesReply> Namespaces(const Deadline& deadline);
  Result<admin::v1::SessionsReply> Sessions(const Deadline& deadline);

 private:
  struct Stub;
  const std::unique_ptr<Stub> stub_;
};

// Whether the daemon that is administered here is the one that a client met.
bool IsSameDaemon(const admin::v1::StatusReply& status, uint64_t incarnation);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLIENT_CLI_ADMIN_H_
