#include "common/config/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "common/base/nearest.h"
#include "common/config/assignment.h"
#include "common/config/bad_setting.h"

namespace penstock {
using internal::Bad;

namespace {

using internal::Assignment;
using internal::QuoteValue;

constexpr std::string_view kConfig = "config";
constexpr std::string_view kConfigVariable = "PENSTOCK_CONFIG";

bool IsWordCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

bool IsOptionName(std::string_view name) {
  if (name.empty() || name.front() == '.' || name.back() == '.') return false;
  if (name.find("..") != std::string_view::npos) return false;
  return std::ranges::all_of(name, [](char c) { return IsWordCharacter(c) || c == '.'; });
}

std::string VariableOf(std::string_view name) {
  std::string variable(OptionTable::kPrefix);
  for (const char c : name) {
    variable += c == '.' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return variable;
}

[[noreturn]] void Bug(std::string_view what, std::string_view name) {
  fmt::print(stderr, "option table: {} \"{}\"\n", what, name);
  std::abort();
}

std::string DidYouMean(std::string_view nearest) {
  return nearest.empty() ? "" : fmt::format(", did you mean {}?", nearest);
}

// `text` broken into lines of at most `width`, each after the first behind `indent`.
std::string Wrap(std::string_view text, size_t width, std::string_view indent) {
  std::string out;
  size_t column = 0;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    if (column > 0 && column + 1 + space > width) {
      out += fmt::format("\n{}", indent);
      column = 0;
    }
    if (column > 0) out += ' ';
    column += space + (column > 0 ? 1 : 0);
    out += text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return out;
}

}  // namespace

OptionTable::OptionTable(std::string program, std::string summary)
    : program_(std::move(program)), summary_(std::move(summary)) {}

OptionTable& OptionTable::Add(std::string name, OptionType type, std::string help) {
  return AddOption({.name = std::move(name), .type = std::move(type), .help = std::move(help)});
}

OptionTable& OptionTable::AddSecret(std::string name, OptionType type, std::string help) {
  return AddOption(
      {.name = std::move(name), .type = std::move(type), .help = std::move(help), .secret = true});
}

OptionTable& OptionTable::AddOption(Option option) {
  if (!IsOptionName(option.name)) Bug("no name for an option:", option.name);
  option.variable = VariableOf(option.name);
  option.default_value = option.type.get();
  option.source = "default";
  for (const std::string_view taken : {"config", "help", "version"}) {
    if (option.variable == VariableOf(taken)) Bug("reserved name:", option.name);
  }
  for (const Option& other : options_) {
    if (other.variable == option.variable) Bug("name is taken:", option.name);
    const bool nested =
        other.name.starts_with(option.name + ".") || option.name.starts_with(other.name + ".");
    if (nested) Bug("a section cannot be an option as well:", option.name);
  }
  options_.push_back(std::move(option));
  return *this;
}

OptionTable& OptionTable::IgnoreVariable(std::string variable) {
  ignored_variables_.push_back(std::move(variable));
  return *this;
}

OptionTable::Inputs OptionTable::ProcessInputs(int argc, const char* const* argv) {
  Inputs inputs;
  for (int i = 1; i < argc; ++i) inputs.args.emplace_back(argv[i]);
  inputs.environment = EnvironmentWithPrefix(kPrefix);
  return inputs;
}

const OptionTable::Option* OptionTable::Find(std::string_view name) const {
  const auto found = std::ranges::find(options_, name, &Option::name);
  return found == options_.end() ? nullptr : &*found;
}

Status OptionTable::Unknown(const Assignment& assignment) const {
  std::vector<std::string_view> names = {kConfig, "help", "version"};
  std::vector<std::string_view> members;
  for (const Option& option : options_) {
    names.push_back(option.name);
    if (option.name.starts_with(assignment.name + ".")) members.push_back(option.name);
  }
  if (!members.empty()) {
    return Bad(fmt::format("{} ({}) is a section, it holds {}", QuoteValue(assignment.written),
                           assignment.source, fmt::join(members, ", ")));
  }
  const std::string_view parent =
      std::string_view(assignment.name).substr(0, assignment.name.rfind('.'));
  if (parent != assignment.name && Find(parent) != nullptr) {
    return Bad(fmt::format("{} ({}): {} takes a value and has no settings below it",
                           QuoteValue(assignment.written), assignment.source, parent));
  }
  return Bad(fmt::format("unknown option {} ({}){}", QuoteValue(assignment.written),
                         assignment.source, DidYouMean(Nearest(assignment.name, names))));
}

Status OptionTable::UnknownVariable(std::string_view variable) const {
  std::vector<std::string_view> names = {kConfigVariable};
  for (const Option& option : options_) names.push_back(option.variable);
  return Bad(fmt::format("unknown variable {} in the environment{}", QuoteValue(variable),
                         DidYouMean(Nearest(variable, names))));
}

Status OptionTable::Apply(const std::vector<Assignment>& assignments) {
  for (const Assignment& a : assignments) {
    const auto option = std::ranges::find(options_, a.name, &Option::name);
    if (option == options_.end()) return Unknown(a);
    const auto bad = [&](std::string_view why) {
      const std::string value = option->secret ? "(hidden)"
                                : a.values.empty()
                                    ? "none"
                                    : QuoteValue(fmt::format("{}", fmt::join(a.values, ", ")));
      return Bad(fmt::format("option {}: value {} ({}): {}", option->name, value, a.source, why));
    };
    if (a.no_value) return bad("it has no value; leave it out for the default");
    if (a.is_list && !option->type.set_list) return bad("want one value, not a list");
    const Status s = a.is_list ? option->type.set_list(a.values) : option->type.set(a.values[0]);
    if (!s.ok()) return bad(s.message());
    option->source = a.source;
  }
  return Status::Ok();
}

Result<std::vector<Assignment>> OptionTable::ReadEnvironment(const Inputs& inputs,
                                                             std::string* config_path) const {
  std::vector<Assignment> found;
  for (const auto& [variable, value] : inputs.environment) {
    const auto option = std::ranges::find(options_, variable, &Option::variable);
    if (variable == kConfigVariable) {
      if (value.empty()) return Bad("PENSTOCK_CONFIG is empty, want the path of a file");
      *config_path = value;
    } else if (option != options_.end()) {
      found.push_back({.name = option->name,
                       .written = variable,
                       .source = fmt::format("variable {}", variable),
                       .values = {value}});
    } else if (!IsServiceVariable(variable, value) &&
               std::ranges::find(ignored_variables_, variable) == ignored_variables_.end()) {
      return UnknownVariable(variable);
    }
  }
  return found;
}

Status OptionTable::LoadSources(const Inputs& inputs) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Assignment> flags,
                            internal::ReadFlags(inputs.args, [&](std::string_view name) {
                              const Option* option = Find(name);
                              return option != nullptr && option->type.is_switch;
                            }));
  std::string config_path;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Assignment> variables,
                            ReadEnvironment(inputs, &config_path));
  const auto config_flag = std::ranges::find(flags, kConfig, &Assignment::name);
  if (config_flag != flags.end()) {
    config_path = config_flag->values[0];
    if (config_path.empty()) return Bad("flag --config is empty, want the path of a file");
    flags.erase(config_flag);
  }
  if (!config_path.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Assignment> file,
                              internal::ReadYamlFile(config_path));
    PENSTOCK_RETURN_IF_ERROR(Apply(file));
  }
  PENSTOCK_RETURN_IF_ERROR(Apply(variables));
  return Apply(flags);
}

Result<OptionTable::Outcome> OptionTable::Load(const Inputs& inputs) {
  for (const std::string& arg : inputs.args) {
    if (arg == "--help" || arg == "-h") return Outcome::kHelp;
    if (arg == "--version") return Outcome::kVersion;
  }
  PENSTOCK_RETURN_IF_ERROR(LoadSources(inputs));
  return Outcome::kRun;
}

std::string OptionTable::Help() const {
  constexpr std::string_view kIndent = "      ";
  constexpr size_t kWidth = 90;
  std::string out =
      fmt::format("Usage: {} [--NAME=VALUE]...\n\n{}\n\n", program_, Wrap(summary_, kWidth, ""));
  out +=
      "  --config=FILE\n      YAML file with any of the options below; a dot in a name is a "
      "level of nesting.\n      Also: PENSTOCK_CONFIG. The environment overrides the file, flags "
      "override both.\n";
  for (const Option& option : options_) {
    const std::string shown = option.default_value.empty() ? "none" : option.default_value;
    std::string text = option.help;
    if (!option.type.rule.empty()) text += fmt::format(" Range: {}.", option.type.rule);
    text += fmt::format(" Default: {}.", option.secret ? "none" : shown);
    text += fmt::format(" Also: {}.", option.variable);
    out += fmt::format("  --{}{}{}{}\n{}{}\n", option.name, option.type.is_switch ? "[" : "",
                       "=" + option.type.placeholder, option.type.is_switch ? "]" : "", kIndent,
                       Wrap(text, kWidth, kIndent));
  }
  out +=
      "  --help, --version\n\nSizes: 4096, 512MB (powers of 1000), 4GiB (powers of 1024). "
      "Durations: 500ms, 10s, 2m.\n";
  return out;
}

std::vector<OptionTable::Effective> OptionTable::EffectiveOptions() const {
  std::vector<Effective> all;
  for (const Option& option : options_) {
    const std::string value = option.type.get();
    all.push_back(
        {option.name, option.secret && !value.empty() ? "(hidden)" : value, option.source});
  }
  return all;
}

}  // namespace penstock
