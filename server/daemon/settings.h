// Settings: what an operator can tell penstockd, and how that becomes DaemonOptions on the machine
// at hand. Every option is described once, here; docs/operations/daemon.md shows the same text, and
// a test holds the two together.

#ifndef PENSTOCK_SERVER_DAEMON_SETTINGS_H_
#define PENSTOCK_SERVER_DAEMON_SETTINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/deadline.h"
#include "common/base/status.h"
#include "common/config/option_table.h"
#include "common/log/log.h"
#include "server/daemon/daemon.h"
#include "server/daemon/machine/machine.h"

namespace penstock {

struct Settings {
  std::vector<std::string> listen = {"tcp://0.0.0.0:7411", "tcp://[::]:7411"};
  std::string unix_socket = "auto";
  std::string advertise_host;
  std::vector<std::string> wires = {"auto"};
  std::string admin_address = "127.0.0.1:7412";
  std::string metrics_address = "127.0.0.1:9411";
  std::string ready_file;
  Duration stop_grace = std::chrono::seconds(5);

  std::string arena = "auto";
  PageKind arena_pages = PageKind::kTransparentHuge;
  bool arena_prefault = false;
  bool arena_lock = false;
  std::optional<uint64_t> max_chunk;
  uint32_t headroom_percent = 2;
  uint32_t max_pinned_percent = 25;
  uint32_t max_reserved_percent = 50;
  uint32_t max_pending_percent = 25;
  uint32_t max_fetching_percent = 50;
  Duration max_pin_ttl = std::chrono::hours(24);
  Duration max_reservation_ttl = std::chrono::minutes(5);

  uint32_t data_threads = 0;    // 0: chosen from the cores.
  uint32_t worker_threads = 0;  // The same.

  uint32_t max_sessions = 4096;
  uint32_t max_in_flight = 16384;
  uint64_t message_memory = 512u << 20;
  SessionLimits session;
  ServingLimits serving;
  HealthOptions health;

  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
};

// The options of penstockd, tied to `settings`, which must outlive the table.
OptionTable MakeOptionTable(Settings& settings);

// What to start on `machine`, which is as after RaiseDescriptorLimit(). `listen_is_default`: the
// operator did not choose the addresses, so that one this host cannot have is only left out.
// Errors: kInvalidArgument naming the option; kResourceExhausted naming the limit.
Result<DaemonOptions> PlanDaemon(const Settings& settings, const Machine& machine,
                                 bool listen_is_default);

// "penstockd 0.1.0"
std::string DaemonVersion();

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_SETTINGS_H_
