// The commands of `penstock`. Each Add...() declares one or more on the parser and, when it is the
// one that was given, sets what is to be run.

#ifndef PENSTOCK_CLIENT_CLI_COMMANDS_H_
#define PENSTOCK_CLIENT_CLI_COMMANDS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "client/cli/context.h"

namespace penstock::cli {

struct Chosen {
  // Gives the exit code. Runs with a loaded context.
  std::function<int(Context&)> run;
};

void AddDataCommands(CLI::App& app, Chosen& chosen);   // put get stat drop pin match
void AddAdminCommands(CLI::App& app, Chosen& chosen);  // ns top
void AddPingCommand(CLI::App& app, Chosen& chosen);
void AddDoctorCommand(CLI::App& app, Chosen& chosen);
void AddBenchCommand(CLI::App& app, Chosen& chosen);
// `completion bash|zsh`: needs no configuration, and prints by itself.
void AddCompletionCommand(CLI::App& app, Chosen& chosen);

// A subcommand with examples below its help.
CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& what,
                     const std::string& examples);

// The script that completes every command and option of `app`. `shell`: "bash" or "zsh".
std::string CompletionScript(const CLI::App& app, const std::string& shell);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLIENT_CLI_COMMANDS_H_
