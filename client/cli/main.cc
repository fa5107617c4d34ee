// penstock: everything that an operator does with a penstockd, for people and, with --json, for
// scripts.

#include <fmt/format.h>

#include <cstdio>

#include "client/cli/commands.h"
#include "common/base/nearest.h"
#include "common/base/units.h"

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
  // Their defaults are Settings', which the configuration and the environment may replace.
  const Settings usual;
  app.add_option("--address", given.address,
                 fmt::format("Where the daemon serves clients, usually {}", usual.address))
      ->type_name("tcp://HOST:PORT|unix:///PATH");
  app.add_option("--admin-address", given.admin_address,
                 fmt::format("Where the daemon is administered, usually {}", usual.admin_address))
      ->type_name("HOST:PORT");
  app.add_option("--wire", given.wire,
                 fmt::format("What carries the bytes, usually {}", usual.wire))
      ->check(CLI::IsMember({"auto", "local", "tcp", "ucx"}));
  app.add_option("--tenant", given.tenant,
                 fmt::format("On whose behalf, usually {}", usual.tenant));
  app.add_option("--namespace", given.ns,
                 fmt::format("A simple namespace of this name, usually {}", usual.ns));
  app.add_option("--descriptor", given.descriptor_file,
                 "JSON file that describes the namespace, instead of --namespace")
      ->type_name("FILE");
  app.add_option("--timeout", given.timeout,
                 fmt::format("The longest that one call may take, like 500ms; usually {}",
                             RoughDuration(usual.timeout)))
      ->type_name("TIME");
  app.add_flag("--json", given.json, "One JSON object on stdout, for scripts");
}

// Says what was wrong with the command line, with the command that may have been meant.
int Misused(const CLI::App& app, const CLI::ParseError& error, bool json) {
  std::string what = error.what();
  const std::vector<std::string> rest = app.remaining();
  if (app.get_subcommands().empty() && !rest.empty() && !rest[0].starts_with("-")) {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
    const std::vector<std::string_view> candidates(names.begin(), names.end());
    const std::string_view near = Nearest(rest[0], candidates);
    what = fmt::format("unknown command {}{}", rest[0],
                       near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }
  std::fprintf(stderr, "penstock: %s\npenstock: see penstock --help\n", what.c_str());
  if (json) std::puts(ToJson(Status(Code::kInvalidArgument, what)).dump().c_str());
  return kExitUsage;
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
    if (error.get_exit_code() == 0) return app.exit(error);  // Help, or the version.
    return Misused(app, error, given.json);
  }
  Context context(given);
  if (const Status loaded = context.Load(); !loaded.ok()) return context.Fail(loaded);
  return chosen.run(context);
}

}  // namespace
}  // namespace penstock::cli

int main(int argc, char** argv) { return penstock::cli::Main(argc, argv); }
