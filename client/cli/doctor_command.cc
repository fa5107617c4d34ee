#include <fmt/format.h>

#include "client/cli/commands.h"
#include "client/cli/doctor.h"

namespace penstock::cli {
namespace {

const char* LevelName(Finding::Level level) {
  switch (level) {
    case Finding::Level::kOk:
      return "OK";
    case Finding::Level::kWarn:
      return "WARN";
    case Finding::Level::kFail:
      break;
  }
  return "FAIL";
}

int Doctor(const Context& context, bool self_test) {
  std::vector<Finding> findings = ExamineMachine();
  for (Finding& finding : ExamineDaemon(context, self_test)) {
    findings.push_back(std::move(finding));
  }
  Json checks = Json::array();
  std::string text;
  size_t warnings = 0, failures = 0;
  bool reached = true;
  for (const Finding& f : findings) {
    checks.push_back({{"name", f.name}, {"level", LevelName(f.level)}, {"detail", f.detail}});
    if (!f.advice.empty()) checks.back()["advice"] = f.advice;
    text += fmt::format("{:4}  {:14}  {}\n", LevelName(f.level), f.name, f.detail);
    if (!f.advice.empty()) text += fmt::format("{:22}-> {}\n", "", f.advice);
    warnings += f.level == Finding::Level::kWarn ? 1 : 0;
    failures += f.level == Finding::Level::kFail ? 1 : 0;
    if (f.name == "reach") reached = f.level == Finding::Level::kOk;
  }
  text += fmt::format("\n{} checks, {} warnings, {} failures", findings.size(), warnings, failures);
  context.Print({{"ok", failures == 0},
                 {"code", failures == 0 ? "OK" : "FAIL"},
                 {"warnings", warnings},
                 {"failures", failures},
                 {"checks", checks}},
                text);
  if (!reached) return kExitUnreachable;
  return failures == 0 ? kExitOk : kExitFailure;
}

}  // namespace

void AddDoctorCommand(CLI::App& app, Chosen& chosen) {
  CLI::App* doctor =
      AddCommand(app, "doctor", "Checks what makes a first day fail, here and at the daemon",
                 "  penstock doctor\n"
                 "  penstock doctor --address tcp://10.0.0.5:7411 --admin-address 10.0.0.5:7412");
  const auto no_test = std::make_shared<bool>(false);
  doctor->add_flag("--no-self-test", *no_test, "Store and fetch nothing");
  doctor->callback([=, &chosen] { chosen.run = [=](Context& c) { return Doctor(c, !*no_test); }; });
}

}  // namespace penstock::cli
