// Reads the golden files in this folder.

#ifndef PENSTOCK_TESTS_UNIT_GOLDEN_GOLDEN_H_
#define PENSTOCK_TESTS_UNIT_GOLDEN_GOLDEN_H_

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/bytes.h"

namespace penstock::testing {

// The file `name` of tests/unit/golden. A missing or broken file ends the test program.
inline nlohmann::ordered_json ReadGolden(const std::string& name) {
  std::ifstream file(std::string(PENSTOCK_GOLDEN_DIR "/") + name);
  auto json = nlohmann::ordered_json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) std::abort();
  return json;
}

inline std::vector<std::byte> FromHex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_UNIT_GOLDEN_GOLDEN_H_
