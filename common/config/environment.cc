#include "common/config/environment.h"

#include <unistd.h>

#include <cstdlib>

namespace penstock {

std::optional<std::string> EnvironmentVariable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

EnvironmentVariables EnvironmentWithPrefix(std::string_view prefix) {
  EnvironmentVariables found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || !text.starts_with(prefix)) continue;
    found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

bool IsServiceVariable(std::string_view name, std::string_view value) {
  const auto contains = [&](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  };
  if (name.ends_with("_SERVICE_HOST") || contains("_SERVICE_PORT")) return true;
  for (const std::string_view protocol : {"_TCP", "_UDP", "_SCTP"}) {
    if (contains("_PORT_") && contains(protocol)) return true;
  }
  return name.ends_with("_PORT") && value.find("://") != std::string_view::npos;
}

}  // namespace penstock
