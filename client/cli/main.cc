// penstock: everything that an operator does with a penstockd, for people and, with --json, for
// scripts.

#include <cstdio>

#include "client/cli/commands.h"

namespace penstock::cli {
namespace {

constexpr const char* kFooter =
    "Exit codes:\n"
    "  0  done             1  not stored           2  wrong usage   3  no daemon answers\n"
    "  4  the daemon refused (exists, busy, full)  5  wrong bytes   6  time was up\n"
    "  7  anything else\n"
    "\n"
    "Settings come from --config, then PENSTOCK_ADDRESS, PENSTOCK_ADMIN_ADDRESS, PENSTOCK_WIRE,\n"
    "PENSTOCK_TENANT, PENSTOCK_NAMESPACE and PENSTOCK_TIMEOUT, then the command line; later ones\n"
    "win.";

void AddSettings(CLI::App& app, GivenSettings& given) {
  app.add_option("--config", given.config, "YAML file with settings")->type_name("FILE");
  app.add_option("--address", given.address, "Where the daemon serves clients")
      ->type_name("tcp://HOST:PORT|unix:///PATH");
  app.add_option("--admin-address", given.admin_address, "Where the daemon is administered")
      ->type_name("HOST:PORT");
  app.add_option("--wire", given.wire, "What carries the bytes")
      ->check(CLI::IsMember({"auto", "tcp", "ucx"}));
  app.add_option("--tenant", given.tenant, "On whose behalf");
  app.add_option("--namespace", given.ns, "A simple namespace of this name");
  app.add_option("--descriptor", given.descriptor_file,
                 "JSON file that describes the namespace, instead of --namespace")
      ->type_name("FILE");
  app.add_option("--timeout", given.timeout,
                 "The longest that one call may take, like 500ms or 10s")
      ->type_name("TIME");
  app.add_flag("--json", given.json, "One JSON object on stdout, for scripts");
}

int Main(int argc, char** argv) {
  CLI::App app("Talks to a penstockd: stores, finds and inspects KV chunks.", "penstock");
  app.require_subcommand(1);
  app.fallthrough();
  app.set_version_flag("--version", "penstock " PENSTOCK_VERSION);
  app.footer(kFooter);
  GivenSettings given;
  AddSettings(app, given);
  Chosen chosen;
  AddDataCommands(app, chosen);
  AddAdminCommands(app, chosen);
  AddPingCommand(app, chosen);
  AddDoctorCommand(app, chosen);
  AddBenchCommand(app, chosen);
  AddCompletionCommand(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  Context context(given);
  if (const Status loaded = context.Load(); !loaded.ok()) return context.Fail(loaded);
  return chosen.run(context);
}

}  // namespace
}  // namespace penstock::cli

int main(int argc, char** argv) { return penstock::cli::Main(argc, argv); }
