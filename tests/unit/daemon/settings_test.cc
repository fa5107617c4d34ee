// Every option of penstockd, as the table itself lists them: what is mistyped or of the wrong kind
// is refused, and the refusal names option, value and source.

#include "server/daemon/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cctype>
#include <filesystem>
#include <fstream>

namespace penstock {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string VariableOf(std::string name) {
  for (char& c : name) c = c == '.' ? '_' : static_cast<char>(toupper(c));
  return "PENSTOCK_" + name;
}

class SettingsTest : public testing::Test {
 protected:
  SettingsTest() {
    std::string name = std::filesystem::temp_directory_path() / "penstock-test-XXXXXX";
    if (mkdtemp(name.data()) != nullptr) directory_ = name;
  }
  ~SettingsTest() override { std::filesystem::remove_all(directory_); }

  static std::vector<OptionTable::Effective> Options() {
    Settings settings;
    return MakeOptionTable(settings).EffectiveOptions();
  }
  static Status Load(std::vector<std::string> args, EnvironmentVariables environment = {}) {
    Settings settings;
    return MakeOptionTable(settings).Load({std::move(args), std::move(environment)}).status();
  }
  Status LoadFile(const std::string& text) {
    const std::string path = directory_ + "/penstock.yaml";
    std::ofstream(path) << text;
    return Load({"--config=" + path});
  }
  // From every source, with the option, the source and, where there is one, the value.
  void ExpectRefused(const std::string& name, const std::string& value) {
    const auto expect = [&](const Status& status, const std::string& source) {
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << name << " = " << value;
      EXPECT_THAT(status.message(), AllOf(HasSubstr("option " + name + ":"), HasSubstr(source)));
    };
    expect(Load({"--" + name + "=" + value}), "flag --" + name);
    expect(Load({}, {{VariableOf(name), value}}), "variable " + VariableOf(name));
    expect(LoadFile(name + ": '" + value + "'\n"), "penstock.yaml:1");
  }

  std::string directory_;
};

TEST_F(SettingsTest, EveryNameMistypedByOneLetterIsRefusedWithTheRightOne) {
  for (const auto& option : Options()) {
    for (size_t i = 0; i < option.name.size(); ++i) {
      if (option.name[i] == '.') continue;
      std::string dropped = option.name, changed = option.name, doubled = option.name;
      dropped.erase(i, 1);
      changed[i] = changed[i] == 'x' ? 'y' : 'x';
      doubled.insert(i, 1, doubled[i]);
      for (const std::string& wrong : {dropped, changed, doubled}) {
        const Status flag = Load({"--" + wrong + "=1"});
        EXPECT_EQ(flag.code(), Code::kInvalidArgument) << wrong;
        EXPECT_THAT(flag.message(), AllOf(HasSubstr(wrong), HasSubstr(option.name)));
        if (VariableOf(wrong) == "PENSTOCK_WIRE") continue;  // The penstock command's own.
        const Status variable = Load({}, {{VariableOf(wrong), "1"}});
        EXPECT_EQ(variable.code(), Code::kInvalidArgument) << wrong;
        EXPECT_THAT(variable.message(), HasSubstr(VariableOf(option.name)));
        if (wrong != changed) continue;
        const Status file = LoadFile(wrong + ": 1\n");
        EXPECT_EQ(file.code(), Code::kInvalidArgument) << wrong;
        EXPECT_THAT(file.message(), AllOf(HasSubstr("penstock.yaml:1"), HasSubstr(option.name)));
      }
    }
  }
}

TEST_F(SettingsTest, AValueOfTheWrongKindIsRefusedForEveryOption) {
  int free_text = 0;
  for (const auto& option : Options()) {
    // Any text may be a name or a path; still one printable line, and one value.
    const bool takes_any_text = option.name == "advertise_host" || option.name == "ready_file";
    free_text += takes_any_text ? 1 : 0;
    EXPECT_FALSE(Load({"--" + option.name + "=a\nb"}).ok()) << option.name;
    EXPECT_FALSE(Load({}, {{VariableOf(option.name), "\x01"}}).ok()) << option.name;
    EXPECT_FALSE(LoadFile(option.name + ":\n  deeper: 1\n").ok()) << option.name;
    EXPECT_FALSE(LoadFile(option.name + ": ~\n").ok()) << option.name;
    EXPECT_FALSE(Load({"--" + option.name + "=1", "--" + option.name + "=1"}).ok()) << option.name;
    if (takes_any_text) continue;
    for (const char* wrong : {"ten potatoes,", "-7", "10gb", "1e", ""}) {
      ExpectRefused(option.name, wrong);
    }
  }
  EXPECT_EQ(free_text, 2);
}

TEST_F(SettingsTest, EveryDefaultIsAValueThatEverySourceTakes) {
  for (const auto& option : Options()) {
    if (option.value.empty()) continue;
    const Status flag = Load({"--" + option.name + "=" + option.value});
    EXPECT_TRUE(flag.ok()) << flag.ToString();
    const Status variable = Load({}, {{VariableOf(option.name), option.value}});
    EXPECT_TRUE(variable.ok()) << variable.ToString();
  }
}

// What the shell of an operator holds besides: no mistake.
TEST_F(SettingsTest, VariablesOfThePenstockCommandAreLeftAlone) {
  EXPECT_TRUE(Load({}, {{"PENSTOCK_ADDRESS", "tcp://1.2.3.4:5"}, {"PENSTOCK_TIMEOUT", "5s"}}).ok());
}

}  // namespace
}  // namespace penstock
