// OptionTable: every setting of a program, declared once.
//
//   Settings s;
//   OptionTable table("penstockd", "Keeps KV chunks and serves them.");
//   table.Add("listen", TextOption(&s.listen), "Address to serve on.");
//   table.Add("store.dram_bytes", AutoBytesOption(&s.dram_bytes), "Memory for chunks.");
//   PENSTOCK_ASSIGN_OR_RETURN(auto outcome, table.Load(OptionTable::ProcessInputs(argc, argv)));
//
// Sources, each overriding the ones before: the defaults (the variables' values when they were
// added), the YAML file that --config names (nested keys joined by dots), the environment
// (PENSTOCK_STORE_DRAM_BYTES), flags (--store.dram_bytes=4GiB; a dash reads as an underscore).
//
// Every source is checked whole, also where a later one overrides it: an unknown or repeated name,
// a value of the wrong form or out of range is an error that names option, value, source and what
// was probably meant. docs/configuration.md is the text for operators.
//
// Thread safety: none; load at start. The variables must outlive the table.

#ifndef PENSTOCK_COMMON_CONFIG_OPTION_TABLE_H_
#define PENSTOCK_COMMON_CONFIG_OPTION_TABLE_H_

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/config/environment.h"
#include "common/config/option_type.h"

namespace penstock {

namespace internal {
struct Assignment;
}

class OptionTable {
 public:
  enum class Outcome { kRun, kHelp, kVersion };

  struct Inputs {
    std::vector<std::string> args;     // Without the program's name.
    EnvironmentVariables environment;  // Those whose names start with kPrefix.
  };

  struct Effective {
    std::string name;
    std::string value;   // "(hidden)" for secrets.
    std::string source;  // "default", "penstock.yaml:7", "PENSTOCK_LISTEN", "flag --listen".
  };

  static constexpr std::string_view kPrefix = "PENSTOCK_";

  OptionTable(std::string program, std::string summary);

  // `name`: lower-case words of letters, digits and underscores, joined by dots; `help`: sentences.
  // Ends the process when the name is malformed or taken, also by its variable: that is a bug.
  OptionTable& Add(std::string name, OptionType type, std::string help);
  // The same for a value that no log, error or service may show.
  OptionTable& AddSecret(std::string name, OptionType type, std::string help);
  // A variable that belongs to another program, so that it is no mistake here.
  OptionTable& IgnoreVariable(std::string variable);

  static Inputs ProcessInputs(int argc, const char* const* argv);

  // Sets the variables. --help (-h) and --version win over everything else and set nothing. After
  // an error (kInvalidArgument) the variables are in no particular state: do not go on.
  Result<Outcome> Load(const Inputs& inputs);

  // For --help: usage, and every option with type, range, default and variable.
  std::string Help() const;
  // Every value with its source, in the order of Add(): for the start-up log and the admin service.
  std::vector<Effective> EffectiveOptions() const;

 private:
  struct Option {
    std::string name;
    std::string variable;  // "PENSTOCK_STORE_DRAM_BYTES"
    OptionType type;
    std::string help;
    std::string default_value;
    std::string source;
    bool secret = false;
  };

  OptionTable& AddOption(Option option);
  const Option* Find(std::string_view name) const;
  Status Unknown(const internal::Assignment& assignment) const;
  Status UnknownVariable(std::string_view variable) const;
  Status Apply(const std::vector<internal::Assignment>& assignments);
  Result<std::vector<internal::Assignment>> ReadEnvironment(const Inputs& inputs,
                                                            std::string* config_path) const;
  Status LoadSources(const Inputs& inputs);

  const std::string program_;
  const std::string summary_;
  std::vector<Option> options_;
  std::vector<std::string> ignored_variables_;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_CONFIG_OPTION_TABLE_H_
