// The ready file: tells scripts and supervisors, as JSON, where a daemon that was given port 0 can
// be reached. It appears whole, once the daemon serves, and goes when it ends.

#ifndef PENSTOCK_SERVER_DAEMON_READY_FILE_H_
#define PENSTOCK_SERVER_DAEMON_READY_FILE_H_

#include <string>

#include "common/base/status.h"
#include "server/daemon/admin/daemon_facts.h"

namespace penstock {

// {"pid": 1, "incarnation": "…", "version": "…", "addresses": ["tcp://…"], "admin": "host:port",
// "metrics": "host:port"}, on one line.
std::string ReadyJson(const DaemonFacts& facts);

// Replaces `path` in one step. Errors: kIoError.
Status WriteReadyFile(const std::string& path, const DaemonFacts& facts);
// Removes `path` if it still tells of this process.
void RemoveReadyFile(const std::string& path, const DaemonFacts& facts);

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_READY_FILE_H_
