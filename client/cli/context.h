// What every command of `penstock` shares: where the daemon is, how results are written, and the
// exit codes that scripts rely on.

#ifndef PENSTOCK_CLIENT_CLI_CONTEXT_H_
#define PENSTOCK_CLIENT_CLI_CONTEXT_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/lib/client.h"
#include "common/base/deadline.h"
#include "common/base/status.h"

namespace penstock::cli {

// Keeps members in the order in which they were added.
using Json = nlohmann::ordered_json;

// Numbers are part of the interface: append, never renumber (docs/cli.md).
enum ExitCode {
  kExitOk = 0,
  kExitMiss = 1,         // Not stored, or "no" as an answer.
  kExitUsage = 2,        // The command line or the configuration is wrong.
  kExitUnreachable = 3,  // No daemon answers.
  kExitRefused = 4,      // The daemon refused: busy, full, denied, too large.
  kExitWrongBytes = 5,   // Bytes did not pass their check. Tell somebody.
  kExitTimeout = 6,
  kExitFailure = 7,  // Anything else.
};
int ExitCodeOf(Code code);

struct Settings {
  std::string address = "tcp://127.0.0.1:7411";
  std::string admin_address = "127.0.0.1:7412";
  std::string wire = "auto";
  std::string tenant = "default";
  std::string ns = "cli";  // The name of a simple namespace.
  Duration timeout = std::chrono::seconds(10);
};

// What the command line says about the shared settings, as given: empty strings were not.
struct GivenSettings {
  std::string config;
  std::string address, admin_address, wire, tenant, ns, timeout;
  std::string descriptor_file;  // Instead of `ns`.
  bool json = false;
};

class Context {
 public:
  explicit Context(GivenSettings given) : given_(std::move(given)) {}

  // Reads the configuration: defaults, --config, PENSTOCK_*, command line, later ones winning.
  // Error: kInvalidArgument.
  Status Load();
  const Settings& settings() const { return settings_; }
  bool json() const { return given_.json; }
  // The command line says where clients are served, and not where that daemon is administered.
  bool address_alone() const { return !given_.address.empty() && given_.admin_address.empty(); }
  Deadline deadline() const { return Deadline::After(settings_.timeout); }

  // A connected client. Errors: kDisconnected with the reason and what to do; kInvalidArgument.
  Result<std::unique_ptr<Client>> Connect(const std::string& wire = "") const;
  // The namespace that --namespace or --descriptor names. Error: kInvalidArgument.
  Result<NamespaceDescriptor> Descriptor() const;

  // Writes a result: `result` with --json, else `text` unless empty. Returns kExitOk.
  int Print(const Json& result, const std::string& text) const;
  // Writes an error to stderr, and with --json also {"ok": false, ...} to stdout; `more` is added
  // to that. Returns the exit code that belongs to it.
  int Fail(const Status& status, const Json& more = Json::object()) const;

 private:
  const GivenSettings given_;
  Settings settings_;
};

// {"ok": true, "code": "OK"}, or with the code's name and message.
Json ToJson(const Status& status);

// A line on stderr that is rewritten as work goes on; nothing when stderr is no terminal.
class Progress {
 public:
  Progress();
  ~Progress();
  void Show(const std::string& text);

 private:
  const bool on_;
  size_t shown_ = 0;
};

// Rows under headings, columns aligned.
std::string Table(const std::vector<std::string>& headings,
                  const std::vector<std::vector<std::string>>& rows);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLIENT_CLI_CONTEXT_H_
