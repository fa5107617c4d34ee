// Assignments: what the sources of configuration say, before anybody knows the options. Internal
// to common/config.

#ifndef PENSTOCK_COMMON_CONFIG_ASSIGNMENT_H_
#define PENSTOCK_COMMON_CONFIG_ASSIGNMENT_H_

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace penstock::internal {

struct Assignment {
  std::string name;     // "store.dram_bytes"
  std::string written;  // The name as the source spells it: "--store.dram-bytes".
  std::string source;   // "penstock.yaml:7", "--store.dram-bytes", "PENSTOCK_STORE_DRAM_BYTES".
  std::vector<std::string> values;
  bool is_list = false;   // A YAML sequence; otherwise `values` has one element.
  bool no_value = false;  // A YAML key alone; then `values` is empty.
};

// What somebody wrote, for an error message: printable and not long; the second in quotes.
std::string Printable(std::string_view value);
std::string QuoteValue(std::string_view value);

// Nested keys joined by dots. Errors: kInvalidArgument with file, line and what is wrong (cannot be
// read, too large, no YAML, more than one document, nested too deeply, a key twice).
Result<std::vector<Assignment>> ReadYamlFile(const std::string& path);
// The same for text that is already there; `path` is for messages.
Result<std::vector<Assignment>> ReadYamlText(const std::string& path, const std::string& text);

// "--name=value", "--name value", and "--name" alone for the names that `is_switch` knows.
// A dash in a name reads as an underscore. Errors: kInvalidArgument (no flag, a flag twice).
Result<std::vector<Assignment>> ReadFlags(
    std::span<const std::string> args, const std::function<bool(std::string_view name)>& is_switch);

}  // namespace penstock::internal

#endif  // PENSTOCK_COMMON_CONFIG_ASSIGNMENT_H_
