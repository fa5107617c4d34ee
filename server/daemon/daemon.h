// Daemon: everything that penstockd is, in one object. main() starts one; so do tests, in-process,
// with port 0.
//
// Threads: `data_threads` event loops own the sessions; a few workers check large chunks; one loop
// each for health and for housekeeping; gRPC and the metrics endpoint bring their own.

#ifndef PENSTOCK_SERVER_DAEMON_DAEMON_H_
#define PENSTOCK_SERVER_DAEMON_DAEMON_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/deadline.h"
#include "common/base/status.h"
#include "common/transport/endpoint.h"
#include "server/daemon/admin/daemon_facts.h"
#include "server/daemon/health/health_monitor.h"
#include "server/daemon/metrics/daemon_metrics.h"
#include "server/daemon/serving/serving.h"
#include "server/daemon/store/store_options.h"

namespace penstock {

struct DaemonOptions {
  // Where clients are served. One that is marked optional may fail to bind: it is then left out,
  // and said so in start_up.
  struct Listen {
    Address address;
    bool optional = false;
  };
  std::vector<Listen> listen;
  std::string advertise_host;  // Empty: the address that a client dialed.
  std::vector<std::string> wires = {"tcp"};
  SessionLimits session;
  uint32_t max_sessions = 4096;
  uint64_t max_message_bytes = 512u << 20;  // Of all sessions: see MessageBudget.

  std::string admin_host = "127.0.0.1";
  uint16_t admin_port = 0;
  bool metrics = true;
  std::string metrics_host = "127.0.0.1";
  uint16_t metrics_port = 0;

  ChunkStoreOptions store;
  ServingLimits serving;
  HealthOptions health;
  uint32_t data_threads = 1;
  uint32_t worker_threads = 1;
  size_t worker_queue = 4096;
  Duration housekeeping = std::chrono::milliseconds(100);

  // For people: shown by the administration interface.
  std::string version;
  std::string arena_reason;
  std::vector<std::string> start_up;
  std::vector<DaemonFacts::ConfigValue> config;
};

class Daemon {
 public:
  // Starts everything; returns when clients can connect. Errors name what could not be had:
  // kIoError (an address, and its owner), kResourceExhausted (a limit), kInvalidArgument.
  static Result<std::unique_ptr<Daemon>> Start(DaemonOptions options);
  // Ends without grace if Stop() was not called.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Takes no new requests, gives those in flight up to `grace` to finish, says goodbye to every
  // session, and stops. Idempotent; not from one of the daemon's threads. False if something was
  // still in flight when `grace` ended.
  bool Stop(Duration grace);

  const DaemonFacts& facts() const;
  uint64_t incarnation() const { return facts().incarnation; }
  // Real ports, in the order of the options.
  std::vector<Address> addresses() const;
  HealthMonitor& health();
  // For tests and the administration interface.
  Serving& serving();
  const DaemonMetrics& metrics() const;
  std::vector<EventLoop*> data_loops() const;

 private:
  struct Parts;
  explicit Daemon(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_DAEMON_H_
