// Configuration text: YAML and flags, into a table with one option of each type. The first byte
// says which of the two.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/config/assignment.h"
#include "common/config/option_table.h"
#include "tests/fuzz/harness.h"

namespace penstock {
namespace {

void CheckYaml(const std::string& text) {
  const auto read = internal::ReadYamlText("fuzz.yaml", text);
  if (!read.ok()) {
    FUZZ_CHECK(read.status().code() == Code::kInvalidArgument);
    FUZZ_CHECK(!read.status().message().empty());
    return;
  }
  for (const internal::Assignment& assignment : read.value()) {
    FUZZ_CHECK(!assignment.source.empty());
    FUZZ_CHECK(assignment.is_list || assignment.no_value || assignment.values.size() == 1);
  }
}

struct Values {
  std::string text = "a";
  bool flag = false;
  int count = 3;
  uint64_t bytes = 4096;
  std::optional<uint64_t> auto_bytes;
  Duration patience = std::chrono::seconds(1);
  std::vector<std::string> list = {"x"};
};

// Whatever is accepted lies within the limits of its option.
void CheckFlags(const std::vector<std::string>& args) {
  Values values;
  OptionTable table("fuzz", "Reads flags.");
  table.Add("text", TextOption(&values.text), "Text.");
  table.Add("flag", SwitchOption(&values.flag), "A switch.");
  table.Add("count", IntegerOption(&values.count, {-3, 7}), "A number.");
  table.Add("bytes", BytesOption(&values.bytes, {1, 1u << 20}), "A size.");
  table.Add("auto_bytes", AutoBytesOption(&values.auto_bytes, {1, 1u << 20}), "A size or auto.");
  table.Add("patience", DurationOption(&values.patience), "A time.");
  table.Add("list", ListOption(&values.list), "A list.");
  const auto outcome = table.Load({.args = args, .environment = {}});
  if (!outcome.ok()) {
    FUZZ_CHECK(outcome.status().code() == Code::kInvalidArgument);
    return;
  }
  FUZZ_CHECK(values.count >= -3 && values.count <= 7);
  FUZZ_CHECK(values.bytes >= 1 && values.bytes <= 1u << 20);
  FUZZ_CHECK(!values.auto_bytes || *values.auto_bytes <= 1u << 20);
  FUZZ_CHECK(values.patience >= Duration::zero());
  FUZZ_CHECK(!values.text.empty());
}

void Check(uint8_t choice, std::string text) {
  if (choice % 2 == 0) {
    CheckYaml(text);
    return;
  }
  std::vector<std::string> args(1);
  for (const char c : text) {
    if (c == '\n') {
      args.emplace_back();
    } else {
      args.back() += c;
    }
  }
  // A file that a flag names would be the fuzzing machine's, not the input's.
  for (const std::string& arg : args) {
    if (arg.find("config") != std::string::npos) return;
  }
  CheckFlags(args);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  penstock::Check(data[0], std::string(penstock::AsText(penstock::FuzzInput(data + 1, size - 1))));
  return 0;
}
