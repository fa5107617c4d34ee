#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "common/config/option_table.h"

namespace penstock {
namespace {

using std::chrono::milliseconds, std::chrono::seconds, std::chrono::minutes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

enum class Wire { kTcp, kUcx };

struct Settings {
  std::string listen = "tcp://[::]:7600";
  std::string salt;
  std::vector<std::string> peers = {"a", "b"};
  bool verify = true;
  uint32_t threads = 2;
  int offset = 0;
  std::optional<uint64_t> dram_bytes;
  uint64_t max_chunk = 64u << 20;
  Duration heartbeat = seconds(2);
  Wire wire = Wire::kTcp;
};

class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() : table_("penstockd", "Keeps KV chunks and serves them.") {
    const std::string pattern =
        (std::filesystem::temp_directory_path() / "penstock_config_XXXXXX").string();
    std::vector<char> name(pattern.begin(), pattern.end());
    name.push_back('\0');
    if (mkdtemp(name.data()) != nullptr) directory_ = name.data();
    table_.Add("listen", TextOption(&s_.listen), "Address to serve on.")
        .AddSecret("tenant_salt", TextOption(&s_.salt), "Salt of every key.")
        .Add("peers", ListOption(&s_.peers, {.placeholder = "HOST"}), "Other daemons.")
        .Add("verify", SwitchOption(&s_.verify), "Check checksums.")
        .Add("threads.data", IntegerOption(&s_.threads, {1, 64}), "Data threads.")
        .Add("threads.offset", IntegerOption(&s_.offset, {-10, 10}), "First processor.")
        .Add("store.dram_bytes", AutoBytesOption(&s_.dram_bytes, {16u << 20, 1ull << 40}),
             "Memory for chunks.")
        .Add("store.max_chunk", BytesOption(&s_.max_chunk), "Largest chunk.")
        .Add("session.heartbeat", DurationOption(&s_.heartbeat, {milliseconds(10), minutes(1)}),
             "Time between heartbeats.")
        .Add("wire", ChoiceOption(&s_.wire, {{"tcp", Wire::kTcp}, {"ucx", Wire::kUcx}}),
             "Wire for bulk bytes.");
  }
  ~ConfigTest() override { std::filesystem::remove_all(directory_); }

  std::string File(const std::string& text) {
    const std::string path = directory_ + "/penstock.yaml";
    std::ofstream(path) << text;
    return path;
  }
  Status Load(std::vector<std::string> args, EnvironmentVariables environment = {}) {
    return table_.Load({std::move(args), std::move(environment)}).status();
  }
  Status LoadFile(const std::string& text) { return Load({"--config=" + File(text)}); }
  // The complaint about a value, which must be the same complaint from every source.
  std::string Refused(const std::string& option, const std::string& value) {
    std::string variable = "PENSTOCK_" + option;
    for (char& c : variable) c = c == '.' ? '_' : static_cast<char>(toupper(c));
    const Status by_flag = Load({"--" + option + "=" + value});
    const Status by_variable = Load({}, {{variable, value}});
    const Status by_file = LoadFile(option + ": '" + value + "'\n");
    for (const Status& s : {by_flag, by_variable, by_file}) {
      EXPECT_EQ(s.code(), Code::kInvalidArgument) << option << " = " << value;
      EXPECT_THAT(s.message(), HasSubstr("option " + option + ": value \"" + value + "\""));
    }
    EXPECT_THAT(by_flag.message(), HasSubstr("(flag --" + option + ")"));
    EXPECT_THAT(by_variable.message(), HasSubstr("(variable " + variable + ")"));
    EXPECT_THAT(by_file.message(), HasSubstr("penstock.yaml:1)"));
    return by_flag.message();
  }
  std::string Source(const std::string& name) {
    for (const auto& option : table_.EffectiveOptions()) {
      if (option.name == name) return option.source;
    }
    return "?";
  }

  Settings s_;
  OptionTable table_;
  std::string directory_;
};

TEST_F(ConfigTest, NothingAtAllGivesTheDefaults) {
  ASSERT_TRUE(Load({}).ok());
  EXPECT_EQ(s_.threads, 2u);
  EXPECT_FALSE(s_.dram_bytes.has_value());
  for (const auto& option : table_.EffectiveOptions()) EXPECT_EQ(option.source, "default");
}

TEST_F(ConfigTest, EveryTypeIsReadFromEverySource) {
  const std::string yaml = R"(# A comment.
listen: tcp://0.0.0.0:0
tenant_salt: "pepper"
peers: [x, y, z]
verify: false
threads: {data: 4, offset: -3}
store:
  dram_bytes: 10 GB
  max_chunk: 1e9
session.heartbeat: 1.5s
wire: ucx
)";
  const Status s = LoadFile(yaml);
  ASSERT_TRUE(s.ok()) << s.ToString();
  EXPECT_EQ(s_.listen, "tcp://0.0.0.0:0");
  EXPECT_EQ(s_.salt, "pepper");
  EXPECT_THAT(s_.peers, ElementsAre("x", "y", "z"));
  EXPECT_FALSE(s_.verify);
  EXPECT_EQ(s_.threads, 4u);
  EXPECT_EQ(s_.offset, -3);
  EXPECT_EQ(s_.dram_bytes, 10'000'000'000u);
  EXPECT_EQ(s_.max_chunk, 1'000'000'000u);
  EXPECT_EQ(s_.heartbeat, milliseconds(1500));
  EXPECT_EQ(s_.wire, Wire::kUcx);
  EXPECT_THAT(Source("store.dram_bytes"), HasSubstr("penstock.yaml:8"));

  ASSERT_TRUE(
      Load({"--listen", "l", "--verify", "--peers=p, q", "--threads.data=5", "--threads.offset",
            "-1", "--store.dram-bytes=auto", "--session.heartbeat=1s", "--wire=tcp"})
          .ok());
  EXPECT_EQ(s_.listen, "l");
  EXPECT_TRUE(s_.verify);
  EXPECT_THAT(s_.peers, ElementsAre("p", "q"));
  EXPECT_EQ(s_.threads, 5u);
  EXPECT_EQ(s_.offset, -1);
  EXPECT_FALSE(s_.dram_bytes.has_value());
  EXPECT_EQ(s_.wire, Wire::kTcp);

  ASSERT_TRUE(
      Load({}, {{"PENSTOCK_VERIFY", "false"}, {"PENSTOCK_STORE_DRAM_BYTES", "64MiB"}}).ok());
  EXPECT_FALSE(s_.verify);
  EXPECT_EQ(s_.dram_bytes, 64u << 20);
}

TEST_F(ConfigTest, FlagsWinOverTheEnvironmentAndThatOverTheFile) {
  const std::string path = File("threads.data: 3\nthreads.offset: 3\nlisten: file\n");
  ASSERT_TRUE(Load({"--threads.data=5"}, {{"PENSTOCK_THREADS_DATA", "4"},
                                          {"PENSTOCK_THREADS_OFFSET", "4"},
                                          {"PENSTOCK_CONFIG", path}})
                  .ok());
  EXPECT_EQ(s_.threads, 5u);
  EXPECT_EQ(s_.offset, 4);
  EXPECT_EQ(s_.listen, "file");
  EXPECT_EQ(Source("threads.data"), "flag --threads.data");
  EXPECT_EQ(Source("threads.offset"), "variable PENSTOCK_THREADS_OFFSET");
  EXPECT_EQ(Source("listen"), path + ":3");
  EXPECT_EQ(Source("wire"), "default");
}

TEST_F(ConfigTest, AWrongValueIsAnErrorAlsoWhereAFlagOverridesIt) {
  const std::string path = File("threads.data: many\n");
  EXPECT_FALSE(Load({"--config=" + path, "--threads.data=5"}).ok());
  EXPECT_FALSE(Load({"--threads.data=5"}, {{"PENSTOCK_THREADS_DATA", "many"}}).ok());
}

TEST_F(ConfigTest, EveryNameMisspeltByOneLetterIsRefusedWithTheRightName) {
  for (const auto& option : table_.EffectiveOptions()) {
    std::vector<std::string> wrong;
    for (size_t i = 0; i < option.name.size(); ++i) {
      std::string dropped = option.name, changed = option.name, doubled = option.name;
      dropped.erase(i, 1);
      changed[i] = changed[i] == 'x' ? 'y' : 'x';
      doubled.insert(i, 1, doubled[i]);
      wrong.insert(wrong.end(), {dropped, changed, doubled});
      if (i > 0 && option.name[i] != option.name[i - 1]) {
        wrong.push_back(option.name);
        std::swap(wrong.back()[i], wrong.back()[i - 1]);
      }
    }
    for (const std::string& name : wrong) {
      const Status by_flag = Load({"--" + name + "=1"});
      EXPECT_EQ(by_flag.code(), Code::kInvalidArgument) << name;
      EXPECT_THAT(by_flag.message(), AllOf(HasSubstr(name), HasSubstr(option.name)));
      std::string variable = "PENSTOCK_" + name, right = "PENSTOCK_" + option.name;
      for (std::string* v : {&variable, &right}) {
        for (char& c : *v) c = c == '.' ? '_' : static_cast<char>(toupper(c));
      }
      if (variable == right) continue;  // A dot became the underscore that it is here anyway.
      const Status by_variable = Load({}, {{variable, "1"}});
      EXPECT_EQ(by_variable.code(), Code::kInvalidArgument) << variable;
      EXPECT_THAT(by_variable.message(), AllOf(HasSubstr(variable), HasSubstr(right)));
    }
  }
  const Status by_file = LoadFile("listen: x\nstore:\n  dram_byte: 4GiB\n");
  EXPECT_THAT(by_file.message(),
              AllOf(HasSubstr("penstock.yaml:3"), HasSubstr("\"store.dram_byte\""),
                    HasSubstr("did you mean store.dram_bytes?")));
  EXPECT_THAT(LoadFile("nothing_like_it_at_all: 1\n").message(), Not(HasSubstr("did you mean")));
}

TEST_F(ConfigTest, SizesAreExact) {
  for (const char* text :
       {"10gb", "10Gb", "10G", "10gib", "10  GB", "10GB ", "10GB,", "10,GB", "-10GB", "-1", "",
        "ten", "1.5", "0x10", "10 GB GB", "1e", "+1", "99999999999999999999"}) {
    const std::string message = Refused("store.max_chunk", text);
    EXPECT_THAT(message, HasSubstr("want a size such as")) << text;
  }
  EXPECT_THAT(Refused("store.max_chunk", "10gb"), HasSubstr("did you mean GB"));
  for (const auto& [text, bytes] : {std::pair<const char*, uint64_t>{"10GB", 10'000'000'000},
                                    {"10 GB", 10'000'000'000},
                                    {"10GiB", 10ull << 30},
                                    {"1e10", 10'000'000'000},
                                    {"0", 0}}) {
    EXPECT_TRUE(LoadFile(std::string("store.max_chunk: ") + text + "\n").ok()) << text;
    EXPECT_EQ(s_.max_chunk, bytes);
    EXPECT_TRUE(Load({std::string("--store.max_chunk=") + text}).ok()) << text;
    EXPECT_EQ(s_.max_chunk, bytes);
  }
}

TEST_F(ConfigTest, ValuesOutOfRangeAreRefusedAndTheRangeNamed) {
  EXPECT_THAT(Refused("threads.data", "0"), HasSubstr("from 1 to 64"));
  EXPECT_THAT(Refused("threads.data", "65"), HasSubstr("from 1 to 64"));
  EXPECT_THAT(Refused("threads.data", "4294967298"), HasSubstr("from 1 to 64"));
  EXPECT_THAT(Refused("threads.offset", "-11"), HasSubstr("from -10 to 10"));
  EXPECT_THAT(Refused("store.dram_bytes", "1MiB"), HasSubstr("16MiB to 1TiB, or auto"));
  EXPECT_THAT(Refused("store.dram_bytes", "0"), HasSubstr("16MiB to 1TiB"));
  EXPECT_THAT(Refused("session.heartbeat", "9ms"), HasSubstr("10ms to 1m"));
  EXPECT_THAT(Refused("session.heartbeat", "2h"), HasSubstr("10ms to 1m"));
}

TEST_F(ConfigTest, ValuesOfTheWrongTypeAreRefused) {
  for (const char* text : {"two", "2.0", "1e1", "0x2", "02", "2 ", " 2", "+2", "", "2,", "-", "--2",
                           "99999999999999999999", "true"}) {
    EXPECT_THAT(Refused("threads.data", text), HasSubstr("want a whole number")) << text;
  }
  for (const char* text : {"yes", "no", "on", "1", "0", "True", "TRUE", "", "false "}) {
    EXPECT_THAT(Refused("verify", text), HasSubstr("true or false")) << text;
  }
  for (const char* text : {"5", "5 seconds", "", "-5s", "1m30s", "5S"}) {
    EXPECT_THAT(Refused("session.heartbeat", text), HasSubstr("want a duration")) << text;
  }
  EXPECT_THAT(Refused("wire", "tpc"),
              AllOf(HasSubstr("one of tcp, ucx"), HasSubstr("did you mean tcp?")));
  EXPECT_THAT(Refused("wire", "TCP"), HasSubstr("one of tcp, ucx"));
  Refused("wire", "");
  Refused("store.dram_bytes", "Auto");
  EXPECT_THAT(Refused("listen", ""), HasSubstr("not empty"));
  EXPECT_THAT(Refused("peers", "a,"), HasSubstr("element 2: want a value that is not empty"));
  Refused("peers", ",a");
  Refused("peers", "a,,b");
  Refused("peers", "");
}

TEST_F(ConfigTest, YamlOfTheWrongShapeIsRefusedWithItsLine) {
  const auto complaint = [&](const std::string& text) {
    const Status s = LoadFile(text);
    EXPECT_EQ(s.code(), Code::kInvalidArgument) << text;
    return s.message();
  };
  EXPECT_THAT(complaint("listen: a\nlisten: b\n"), HasSubstr("yaml:2: \"listen\" is given twice"));
  EXPECT_THAT(complaint("threads:\n  data: 1\nwire: tcp\nthreads:\n  offset: 1\n"),
              HasSubstr("yaml:4: \"threads\" is given twice"));
  EXPECT_THAT(complaint("threads:\n  data: 1\nthreads.data: 2\n"), HasSubstr("given twice"));
  EXPECT_THAT(complaint("wire: tcp\nlisten:\n"), HasSubstr("yaml:2): it has no value"));
  EXPECT_THAT(complaint("listen: ~\n"), HasSubstr("it has no value"));
  EXPECT_THAT(complaint("listen: [a]\n"), HasSubstr("not a list"));
  EXPECT_THAT(complaint("store: 5\n"), HasSubstr("is a section, it holds store.dram_bytes"));
  EXPECT_THAT(complaint("listen:\n  host: a\n"), HasSubstr("listen takes a value"));
  EXPECT_THAT(complaint("peers: [[a]]\n"), HasSubstr("no single value"));
  EXPECT_THAT(complaint("peers: [a, '']\n"), HasSubstr("element 2"));
  EXPECT_THAT(complaint("- a\n- b\n"), HasSubstr("name: value"));
  EXPECT_THAT(complaint("just text\n"), HasSubstr("name: value"));
  EXPECT_THAT(complaint("listen: a\n  bad: [\n"), HasSubstr("penstock.yaml:"));
  EXPECT_THAT(complaint("listen: a\n---\nlisten: b\n"), HasSubstr("more than one YAML document"));
  EXPECT_THAT(complaint("a: &x\n  b: *x\n"), HasSubstr("penstock.yaml"));
  EXPECT_THAT(complaint("? [a]\n: b\n"), HasSubstr("a key is no word"));
  EXPECT_THAT(complaint(std::string("listen: a\0b\n", 12)), HasSubstr("no text file"));
  complaint("a: " + std::string(5000, '['));
  complaint(std::string(5000, '{'));
  complaint("listen: " + std::string((1 << 20) + 1, 'x'));
  // yaml-cpp never gets past this comma, and makes empty documents of it for ever.
  EXPECT_THAT(complaint(",\nlisten: a\n"), HasSubstr("penstock.yaml:1: want settings"));
  EXPECT_THAT(complaint("config: other.yaml\n"), HasSubstr("unknown option \"config\""));
}

TEST_F(ConfigTest, AliasesThatMultiplyAreRefusedBeforeTheyDo) {
  std::string sections = "s0: &a0 {}\n";
  for (int level = 1; level < 7; ++level) {
    sections += fmt::format("s{}: &a{} {{", level, level);
    for (int i = 0; i < 64; ++i) sections += fmt::format("k{}: *a{}, ", i, level - 1);
    sections += "}\n";
  }
  EXPECT_THAT(LoadFile(sections).message(), HasSubstr("too many settings"));
  std::string lists = "l0: &b [x";
  for (int i = 0; i < 2000; ++i) lists += ", x";
  lists += "]\n";
  for (int i = 1; i < 2000; ++i) lists += fmt::format("l{}: *b\n", i);
  EXPECT_THAT(LoadFile(lists).message(), HasSubstr("too many settings"));
}

TEST_F(ConfigTest, AnEmptyFileAndAnEmptyListAreFine) {
  EXPECT_TRUE(LoadFile("").ok());
  EXPECT_TRUE(LoadFile("# nothing\n").ok());
  EXPECT_TRUE(LoadFile("---\n").ok());
  EXPECT_TRUE(LoadFile("peers: []\n").ok());
  EXPECT_TRUE(s_.peers.empty());
}

TEST_F(ConfigTest, AFileThatCannotBeReadIsNamedWithTheReason) {
  const std::string missing = directory_ + "/missing.yaml";
  EXPECT_THAT(Load({"--config", missing}).message(),
              AllOf(HasSubstr(missing), HasSubstr("No such file")));
  EXPECT_THAT(Load({}, {{"PENSTOCK_CONFIG", missing}}).message(), HasSubstr("No such file"));
  EXPECT_THAT(Load({"--config", directory_}).message(), HasSubstr("Is a directory"));
  EXPECT_FALSE(Load({"--config="}).ok());
  EXPECT_FALSE(Load({}, {{"PENSTOCK_CONFIG", ""}}).ok());
}

TEST_F(ConfigTest, FlagsOfTheWrongShapeAreRefused) {
  EXPECT_THAT(Load({"--wire=tcp", "--wire=ucx"}).message(), HasSubstr("--wire is given twice"));
  EXPECT_THAT(Load({"--store.dram_bytes=auto", "--store.dram-bytes=auto"}).message(),
              HasSubstr("given twice"));
  EXPECT_THAT(Load({"--listen"}).message(), HasSubstr("--listen has no value"));
  EXPECT_THAT(Load({"--listen", "--wire=tcp"}).message(), HasSubstr("--listen has no value"));
  EXPECT_THAT(Load({"serve"}).message(), HasSubstr("argument \"serve\" is no option"));
  EXPECT_THAT(Load({"-v"}).message(), HasSubstr("\"-v\""));
  EXPECT_THAT(Load({"--"}).message(), HasSubstr("\"--\""));
  EXPECT_THAT(Load({"--verify", "false"}).message(), HasSubstr("\"false\""));
  EXPECT_THAT(Load({"--=x"}).message(), HasSubstr("unknown option \"--\""));
}

TEST_F(ConfigTest, VariablesOfOtherProgramsAndOfKubernetesAreNoMistakes) {
  table_.IgnoreVariable("PENSTOCK_ADDRESS");
  EXPECT_TRUE(Load({}, {{"PENSTOCK_ADDRESS", "x"},
                        {"PENSTOCK_SERVICE_HOST", "10.0.0.1"},
                        {"PENSTOCK_SERVICE_PORT", "7600"},
                        {"PENSTOCK_DAEMON_SERVICE_PORT_WIRE", "7600"},
                        {"PENSTOCK_PORT", "tcp://10.0.0.1:7600"},
                        {"PENSTOCK_PORT_7600_TCP", "tcp://10.0.0.1:7600"},
                        {"PENSTOCK_PORT_7600_TCP_ADDR", "10.0.0.1"}})
                  .ok());
  EXPECT_FALSE(Load({}, {{"PENSTOCK_PORT", "7600"}}).ok());
}

TEST_F(ConfigTest, TheEnvironmentOfTheProcessIsRead) {
  ASSERT_EQ(setenv("PENSTOCK_THREADS_DATA", "7", 1), 0);
  const char* argv[] = {"penstockd", "--wire=ucx"};
  const OptionTable::Inputs inputs = OptionTable::ProcessInputs(2, argv);
  EXPECT_EQ(EnvironmentVariable("PENSTOCK_THREADS_DATA"), "7");
  unsetenv("PENSTOCK_THREADS_DATA");
  EXPECT_EQ(EnvironmentVariable("PENSTOCK_THREADS_DATA"), std::nullopt);
  ASSERT_TRUE(table_.Load(inputs).ok());
  EXPECT_EQ(s_.threads, 7u);
  EXPECT_EQ(s_.wire, Wire::kUcx);
}

TEST_F(ConfigTest, SecretsAreNeverShown) {
  ASSERT_TRUE(Load({"--tenant_salt=pepper"}).ok());
  EXPECT_EQ(s_.salt, "pepper");
  for (const auto& option : table_.EffectiveOptions()) {
    EXPECT_THAT(option.value, Not(HasSubstr("pepper")));
  }
  const Status s = Load({"--tenant_salt=pep\nper"});
  EXPECT_FALSE(s.ok());
  EXPECT_THAT(s.message(), AllOf(HasSubstr("tenant_salt"), Not(HasSubstr("per\""))));
}

TEST_F(ConfigTest, EffectiveValuesReadBackAsTheyAre) {
  ASSERT_TRUE(Load({"--store.dram_bytes=10GB", "--session.heartbeat=1500ms", "--peers=x,y"}).ok());
  std::string yaml;
  for (const auto& option : table_.EffectiveOptions()) {
    if (option.name != "tenant_salt") yaml += option.name + ": '" + option.value + "'\n";
  }
  const Settings before = s_;
  s_ = Settings();
  const Status s = LoadFile(yaml);
  ASSERT_TRUE(s.ok()) << s.ToString() << "\n" << yaml;
  EXPECT_EQ(s_.dram_bytes, before.dram_bytes);
  EXPECT_EQ(s_.heartbeat, before.heartbeat);
  EXPECT_EQ(s_.peers, before.peers);
  EXPECT_EQ(s_.max_chunk, before.max_chunk);
}

TEST_F(ConfigTest, HelpNamesEveryOptionWithRangeDefaultAndVariable) {
  const std::string help = table_.Help();
  for (const auto& option : table_.EffectiveOptions()) {
    EXPECT_THAT(help, HasSubstr("--" + option.name));
  }
  EXPECT_THAT(help, HasSubstr("--store.dram_bytes=SIZE|auto"));
  EXPECT_THAT(help, HasSubstr("Range: 16MiB to 1TiB. Default: auto. Also:"));
  EXPECT_THAT(help, HasSubstr("PENSTOCK_STORE_DRAM_BYTES"));
  EXPECT_THAT(help, HasSubstr("--verify[=BOOL]"));
  EXPECT_THAT(help, HasSubstr("--wire=tcp|ucx"));
  EXPECT_THAT(help, HasSubstr("Default: 64MiB."));
  for (size_t at = 0; at < help.size();) {
    const size_t end = help.find('\n', at);
    EXPECT_LE(end - at, 100u) << help.substr(at, end - at);
    at = end + 1;
  }
  EXPECT_EQ(*table_.Load({{"--help", "--nonsense"}, {}}), OptionTable::Outcome::kHelp);
  EXPECT_EQ(*table_.Load({{"-h"}, {}}), OptionTable::Outcome::kHelp);
  EXPECT_EQ(*table_.Load({{"--version"}, {}}), OptionTable::Outcome::kVersion);
  EXPECT_EQ(*table_.Load({}), OptionTable::Outcome::kRun);
}

TEST_F(ConfigTest, AnErrorIsOneShortPrintableLine) {
  const Status s = Load({"--threads.data=" + std::string(100'000, 'x') + "\n\x1b[31m"});
  EXPECT_LT(s.message().size(), 300u);
  EXPECT_EQ(s.message().find('\n'), std::string::npos);
  const Status unknown = Load({"--" + std::string(100'000, '\x1b') + "=1"});
  EXPECT_LT(unknown.message().size(), 300u);
  EXPECT_EQ(unknown.message().find('\x1b'), std::string::npos);
}

using OptionTableDeathTest = ConfigTest;

TEST_F(OptionTableDeathTest, NamesThatCannotBeToldApartAreABug) {
  uint64_t n = 0;
  EXPECT_DEATH(table_.Add("listen", BytesOption(&n), "x"), "taken");
  EXPECT_DEATH(table_.Add("store_dram.bytes", BytesOption(&n), "x"), "taken");
  EXPECT_DEATH(table_.Add("store", BytesOption(&n), "x"), "section");
  EXPECT_DEATH(table_.Add("listen.port", BytesOption(&n), "x"), "section");
  EXPECT_DEATH(table_.Add("config", BytesOption(&n), "x"), "reserved");
  EXPECT_DEATH(table_.Add("Bad-Name", BytesOption(&n), "x"), "no name");
}

}  // namespace
}  // namespace penstock
