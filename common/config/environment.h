// The process environment. The only place in the tree that reads it, so that every variable that
// can change what Penstock does is an option with a name, a check and a source.
//
// Thread safety: safe while nobody changes the environment; read it at start.

#ifndef PENSTOCK_COMMON_CONFIG_ENVIRONMENT_H_
#define PENSTOCK_COMMON_CONFIG_ENVIRONMENT_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

using EnvironmentVariables = std::vector<std::pair<std::string, std::string>>;

std::optional<std::string> EnvironmentVariable(const std::string& name);

// All variables whose names start with `prefix`.
EnvironmentVariables EnvironmentWithPrefix(std::string_view prefix);

// True for what Kubernetes puts into every container of a namespace for a service whose name starts
// with ours ("PENSTOCK_SERVICE_HOST", "PENSTOCK_PORT_7600_TCP_ADDR", "PENSTOCK_PORT=tcp://..."):
// nobody's settings.
bool IsServiceVariable(std::string_view name, std::string_view value);

}  // namespace penstock

#endif  // PENSTOCK_COMMON_CONFIG_ENVIRONMENT_H_
