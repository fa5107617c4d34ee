// completion: scripts for the shells, made from the parser itself, so that they are never behind.

#include <fmt/format.h>

#include <algorithm>

#include "client/cli/commands.h"

namespace penstock::cli {
namespace {

std::vector<const CLI::App*> Commands(const CLI::App& app) {
  std::vector<const CLI::App*> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(command);
  }
  return commands;
}

void AppendNames(const CLI::Option& option, std::vector<std::string>& names) {
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
}

// "--json --timeout -o": the options that begin with a dash.
std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) AppendNames(*option, names);
  return names;
}

// Options of all commands whose value follows them: a file, or what only the user knows.
std::vector<std::string> ValueOptions(const CLI::App& app, bool files) {
  std::vector<std::string> names;
  const auto add = [&](const CLI::App& of) {
    for (const CLI::Option* option : of.get_options()) {
      const bool takes_value = option->get_items_expected_max() > 0;
      if (takes_value && (option->get_type_name() == "FILE") == files) AppendNames(*option, names);
    }
  };
  add(app);
  for (const CLI::App* command : Commands(app)) add(*command);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::string Join(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

// Quoted for a single-quoted string of zsh's _describe.
std::string ZshText(const std::string& text) {
  std::string quoted;
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else if (c == ':') {
      quoted += "\\:";
    } else {
      quoted += c;
    }
  }
  return quoted;
}

std::string BashScript(const CLI::App& app) {
  std::vector<std::string> names;
  std::string cases;
  for (const CLI::App* command : Commands(app)) {
    names.push_back(command->get_name());
    cases +=
        fmt::format("    {}) words='{}' ;;\n", command->get_name(), Join(OptionNames(*command)));
  }
  return fmt::format(
      R"(# bash completion of penstock: source it, or put it where bash-completion looks.
_penstock() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local commands='{0}' shared='{1}' words='' command='' word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case " $commands " in *" $word "*) command="$word"; break ;; esac
  done
  case "$previous" in
    --wire) COMPREPLY=($(compgen -W 'auto local tcp ucx' -- "$current")); return ;;
    completion) COMPREPLY=($(compgen -W 'bash zsh' -- "$current")); return ;;
    {3}) COMPREPLY=($(compgen -f -- "$current")); return ;;
    {4}) COMPREPLY=(); return ;;
  esac
  case "$command" in
    '') words="$commands" ;;
{2}  esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$words $shared" -- "$current")) ;;
    *)
      if [ -z "$command" ]; then
        COMPREPLY=($(compgen -W "$commands" -- "$current"))
      else
        COMPREPLY=($(compgen -f -- "$current"))
      fi
      ;;
  esac
}}
complete -o filenames -F _penstock penstock
)",
      Join(names), Join(OptionNames(app)), cases, fmt::join(ValueOptions(app, true), "|"),
      fmt::join(ValueOptions(app, false), "|"));
}

std::string ZshScript(const CLI::App& app) {
  std::string commands, cases;
  for (const CLI::App* command : Commands(app)) {
    commands +=
        fmt::format("    '{}:{}'\n", command->get_name(), ZshText(command->get_description()));
    cases += fmt::format("        {}) options=({}) ;;\n", command->get_name(),
                         Join(OptionNames(*command)));
  }
  return fmt::format(R"(#compdef penstock
# zsh completion of penstock: put it into a directory of $fpath as _penstock.
_penstock() {{
  local curcontext="$curcontext" state
  local -a commands shared options
  commands=(
{0}  )
  shared=({1})
  _arguments -C '1: :->command' '*:: :->rest'
  case $state in
    command)
      if [[ $PREFIX == -* ]]; then compadd -- $shared; else _describe command commands; fi
      ;;
    rest)
      case $words[1] in
{2}      esac
      if [[ $PREFIX == -* ]]; then
        compadd -- $options $shared
      elif [[ $words[1] == completion ]]; then
        compadd -- bash zsh
      else
        _files
      fi
      ;;
  esac
}}
_penstock "$@"
)",
                     commands, Join(OptionNames(app)), cases);
}

}  // namespace

CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& what,
                     const std::string& examples) {
  CLI::App* command = app.add_subcommand(name, what);
  command->footer("Examples:\n" + examples);
  return command;
}

std::string CompletionScript(const CLI::App& app, const std::string& shell) {
  return shell == "bash" ? BashScript(app) : ZshScript(app);
}

void AddCompletionCommand(CLI::App& app, Chosen& chosen) {
  CLI::App* completion =
      AddCommand(app, "completion", "Prints a script that completes commands and options",
                 "  source <(penstock completion bash)\n"
                 "  penstock completion zsh > ~/.zsh/completions/_penstock");
  const auto shell = std::make_shared<std::string>();
  completion->add_option("shell", *shell, "bash or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  completion->callback([=, &app, &chosen] {
    chosen.run = [=, &app](Context&) {
      std::fputs(CompletionScript(app, *shell).c_str(), stdout);
      return static_cast<int>(kExitOk);
    };
  });
}

}  // namespace penstock::cli
