// The penstock command against a real penstockd: exit codes, JSON, and what people read.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/integration/client_values.h"
#include "tests/integration/daemon_process.h"

namespace penstock {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

struct Output {
  int exit_code = -1;
  std::string out, err;
  Json json() const {
    Json parsed = Json::parse(out, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << out;
    return parsed;
  }
};

class ClientCli : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto daemon = DaemonProcess::Start();
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    daemon_ = daemon->release();
  }
  static void TearDownTestSuite() { delete daemon_; }

  // Runs `penstock ARGS` with a shell's quoting and redirections.
  Output Run(const std::string& args, const std::string& environment = "") const {
    const std::string err_path = directory_.path() + "/stderr";
    const std::string command = environment + " " PENSTOCK_CLI_PATH " --address " +
                                daemon_->address().ToString() + " --admin-address " +
                                daemon_->admin() + " " + args + " 2>" + err_path;
    return Shell(command, err_path);
  }
  static Output Shell(const std::string& command, const std::string& err_path) {
    Output output;
    FILE* pipe = popen(command.c_str(), "r");
    char buffer[4096];
    for (size_t got; (got = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
      output.out.append(buffer, got);
    }
    const int status = pclose(pipe);
    output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::ifstream err(err_path);
    output.err.assign(std::istreambuf_iterator<char>(err), {});
    return output;
  }
  std::string WriteFile(const std::string& name, const std::string& content) const {
    const std::string path = directory_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  static DaemonProcess* daemon_;
  TempDir directory_;
};
DaemonProcess* ClientCli::daemon_ = nullptr;

TEST_F(ClientCli, PutGetStatDropAndTheirExitCodes) {
  const std::string value = Value(3'000'000, 1);
  const std::string file = WriteFile("value", value);
  EXPECT_EQ(Run("get thing").exit_code, 1);
  const Output put = Run("put thing " + file + " --json");
  EXPECT_EQ(put.exit_code, 0) << put.err;
  EXPECT_EQ(put.json()["bytes"], value.size());
  EXPECT_EQ(put.json()["code"], "OK");
  EXPECT_EQ(put.err, "");  // Nobody is watching: no progress.
  // Stored before, and said so.
  const Output again = Run("put thing " + file + " --json");
  EXPECT_EQ(again.exit_code, 4);
  EXPECT_EQ(again.json()["code"], "ALREADY_EXISTS");
  EXPECT_EQ(Run("put thing " + file + " --replace").exit_code, 0);
  const Output get = Run("get thing");
  EXPECT_EQ(get.exit_code, 0);
  EXPECT_EQ(get.out == value, true);
  const std::string back = directory_.path() + "/back";
  const Output to_file = Run("get thing --json -o " + back);
  EXPECT_EQ(to_file.json()["bytes"], value.size());
  const Output stat = Run("stat thing --json");
  EXPECT_EQ(stat.json()["bytes"], value.size());
  EXPECT_EQ(stat.json()["tier"], "dram");
  EXPECT_EQ(stat.json()["segments"].size(), 1u);
  EXPECT_EQ(stat.json()["key"], put.json()["key"]);
  EXPECT_EQ(Run("stat --key " + put.json()["key"].get<std::string>()).exit_code, 0);
  EXPECT_EQ(Run("pin thing --ttl 1m").exit_code, 0);
  EXPECT_EQ(Run("stat thing --json").json()["pins"], 1);
  EXPECT_EQ(Run("pin thing --ttl 0s").exit_code, 0);
  EXPECT_EQ(Run("drop thing").exit_code, 0);
  const Output gone = Run("drop thing --json");
  EXPECT_EQ(gone.exit_code, 1);
  EXPECT_EQ(gone.json()["code"], "MISS");
  EXPECT_EQ(gone.json()["ok"], false);
}

TEST_F(ClientCli, ValuesComeFromStandardInputToo) {
  EXPECT_EQ(Run("put piped <" + WriteFile("in", "through a pipe")).exit_code, 0);
  EXPECT_EQ(Run("get piped").out, "through a pipe");
}

TEST_F(ClientCli, MatchFindsTheWholeChunksOfAPrompt) {
  const std::string descriptor =
      WriteFile("model.json", TestDescriptor("cli-model").ToJson(NamespaceDescriptor::Salt::kShow));
  std::string tokens = "[";
  for (int i = 0; i < 600; ++i) tokens += std::to_string(i) + ",\n";
  const std::string prompt = WriteFile("prompt.json", tokens + "7]");
  const std::string where = " --descriptor " + descriptor;
  const Output nothing = Run("match --json --tokens " + prompt + where);
  EXPECT_EQ(nothing.exit_code, 1);
  EXPECT_EQ(nothing.json()["asked"], 2);
  EXPECT_EQ(nothing.json()["chunks"], 0);
  std::vector<uint32_t> ids(256);
  for (uint32_t i = 0; i < 256; ++i) ids[i] = i;
  const ChunkKey first =
      PrefixTokensKey(TestDescriptor("cli-model").ComputeFingerprint(), std::nullopt, ids);
  EXPECT_EQ(Run("put --key " + first.ToHex() + where + " <" + prompt).exit_code, 0);
  const Output one = Run("match --json --reserve 10s --tokens " + prompt + where);
  EXPECT_EQ(one.exit_code, 0);
  EXPECT_EQ(one.json()["chunks"], 1);
  EXPECT_EQ(one.json()["tokens"], 256);
  EXPECT_NE(one.json()["reservation"], 0);
}

TEST_F(ClientCli, NsTopAndPingTellWhatTheDaemonDoes) {
  EXPECT_EQ(Run("put x --namespace seen-by-ns <" + WriteFile("x", "x")).exit_code, 0);
  const Json ns = Run("ns --json").json();
  bool seen = false;
  for (const Json& one : ns["namespaces"]) {
    seen = seen || one["descriptor"]["model"] == "seen-by-ns";
  }
  EXPECT_TRUE(seen) << ns;
  EXPECT_THAT(Run("ns").out, HasSubstr("seen-by-ns"));
  const std::string part =
      WriteFile("part.json", R"({"model": "in-parts", "layout": "l", "group": 3,
      "group_kind": "sliding:512", "tp_rank": 1, "tp_size": 2})");
  EXPECT_EQ(Run("put x --descriptor " + part + " <" + WriteFile("x", "x")).exit_code, 0);
  EXPECT_THAT(Run("ns").out, HasSubstr("group 3 sliding:512, tp 1 of 2"));
  const Json top = Run("top --json").json();
  EXPECT_EQ(top["pid"], daemon_->pid());
  EXPECT_GT(top["arena"]["capacity_bytes"], 0);
  EXPECT_THAT(Run("top --once").out, HasSubstr("arena"));
  const Output ping = Run("ping --count 20 --json");
  EXPECT_EQ(ping.exit_code, 0) << ping.err;
  EXPECT_EQ(ping.json()["count"], 20);
  EXPECT_GT(ping.json()["median_us"], 0);
}

TEST_F(ClientCli, DoctorTestsTheWireAndNamesEachCheck) {
  const Output doctor = Run("doctor --json");
  EXPECT_EQ(doctor.exit_code, 0) << doctor.out << doctor.err;
  std::map<std::string, Json> checks;
  const Json report = doctor.json();
  for (const Json& check : report["checks"]) checks[check["name"]] = check;
  for (const char* name : {"version", "memlock", "nofile", "hugepages", "shm", "transport.tcp",
                           "reach", "round-trip", "admin", "health", "wire.tcp"}) {
    EXPECT_TRUE(checks.contains(name)) << name;
  }
  EXPECT_EQ(checks["wire.tcp"]["level"], "OK") << checks["wire.tcp"];
  EXPECT_THAT(checks["wire.tcp"]["detail"].get<std::string>(), HasSubstr("every byte right"));
  for (const auto& [name, check] : checks) {
    EXPECT_EQ(check.contains("advice"), check["level"] != "OK") << check;
  }
}

TEST_F(ClientCli, NobodyThereIsExitCodeThreeWithWhatToDo) {
  const std::string err = directory_.path() + "/stderr";
  const std::string nowhere = " --address unix://" + directory_.path() + "/none --timeout 300ms ";
  for (const char* command : {"get x", "put x /dev/null", "ping", "stat x", "bench"}) {
    const Output output = Shell(PENSTOCK_CLI_PATH + nowhere + command + " 2>" + err, err);
    EXPECT_EQ(output.exit_code, 3) << command << output.err;
    EXPECT_THAT(output.err, HasSubstr("DISCONNECTED")) << command;
  }
  const Output doctor = Shell(PENSTOCK_CLI_PATH + nowhere + "doctor --json 2>" + err, err);
  EXPECT_EQ(doctor.exit_code, 3);
  EXPECT_EQ(doctor.json()["ok"], false);
}

TEST_F(ClientCli, WhatStandsInTheWayIsNamedWhereTheDaemonRuns) {
  const Output wire = Run("ping --wire ucx");
  EXPECT_EQ(wire.exit_code, 7);
  EXPECT_THAT(wire.err, HasSubstr("leave --wire out"));
  EXPECT_EQ(Run("put kept <" + WriteFile("x", "x")).exit_code, 0);
  const Output drop = Run("drop kept never-there --json");
  EXPECT_EQ(drop.exit_code, 1);
  EXPECT_THAT(drop.err, HasSubstr("dropped 1 of 2"));
  EXPECT_EQ(drop.json()["items"][0]["code"], "OK");
}

TEST_F(ClientCli, WrongUsageIsExitCodeTwoAndNamesTheMistake) {
  EXPECT_EQ(Run("").exit_code, 2);
  EXPECT_EQ(Run("put x " + directory_.path()).exit_code, 2) << "a folder is no value";
  EXPECT_EQ(Run("get x").exit_code, 1) << "and nothing was stored";
  const Output unknown = Run("gett x --json");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean get?"));
  EXPECT_EQ(unknown.json()["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(Run("get x --wire pigeon").exit_code, 2);
  EXPECT_EQ(Run("get").exit_code, 2);
  EXPECT_EQ(Run("get --key 1234").exit_code, 2);
  EXPECT_EQ(Run("put x /no/such/file").exit_code, 2);
  const Output timeout = Run("get x --timeout soon");
  EXPECT_EQ(timeout.exit_code, 2);
  EXPECT_THAT(timeout.err, HasSubstr("timeout"));
  const Output variable = Run("get x", "PENSTOCK_ADRESS=tcp://1.2.3.4:5");
  EXPECT_EQ(variable.exit_code, 2);
  EXPECT_THAT(variable.err, HasSubstr("PENSTOCK_ADDRESS"));
  const Output config = Run("get x --config " + WriteFile("c.yaml", "adress: tcp://1.2.3.4:5\n"));
  EXPECT_EQ(config.exit_code, 2);
  EXPECT_THAT(config.err, HasSubstr("address"));
}

TEST_F(ClientCli, SettingsComeFromFileEnvironmentAndFlagsLaterOnesWin) {
  const std::string err = directory_.path() + "/stderr";
  const std::string where = daemon_->address().ToString();
  const std::string file = WriteFile("c.yaml", "address: " + where + "\ntimeout: 5s\n");
  EXPECT_EQ(Shell(PENSTOCK_CLI_PATH " ping --config " + file + " 2>" + err, err).exit_code, 0);
  EXPECT_EQ(
      Shell("PENSTOCK_ADDRESS=" + where + " " PENSTOCK_CLI_PATH " ping 2>" + err, err).exit_code,
      0);
  // A daemon's own settings in the same shell are nobody's mistake.
  EXPECT_EQ(Shell("PENSTOCK_ARENA_SIZE=1GiB PENSTOCK_ADDRESS=unix:///none " PENSTOCK_CLI_PATH
                  " ping --address " +
                      where + " 2>" + err,
                  err)
                .exit_code,
            0);
}

TEST_F(ClientCli, EveryCommandHasHelpWithExamplesAndCompletionKnowsThemAll) {
  const std::string bash = Run("completion bash").out;
  const std::string zsh = Run("completion zsh").out;
  for (const char* command : {"put", "get", "match", "drop", "pin", "stat", "ns", "ping", "top",
                              "bench", "doctor", "completion"}) {
    const Output help = Run(std::string(command) + " --help");
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, HasSubstr("Examples:")) << command;
    EXPECT_THAT(help.out, HasSubstr("penstock " + std::string(command))) << command;
    EXPECT_THAT(bash, HasSubstr(std::string("    ") + command + ") words=")) << command;
    EXPECT_THAT(zsh, HasSubstr(std::string("'") + command + ":")) << command;
  }
  WriteFile("part.json", "{}");
  const std::string script = WriteFile(
      "try.bash", bash +
                      "\nCOMP_WORDS=(penstock pu); COMP_CWORD=1; _penstock; echo ${COMPREPLY[*]}"
                      "\nCOMP_WORDS=(penstock bench --thr); COMP_CWORD=2; _penstock; "
                      "echo ${COMPREPLY[*]}"
                      "\nCOMP_WORDS=(penstock --tenant ''); COMP_CWORD=2; _penstock; "
                      "echo ${COMPREPLY[*]}"
                      "\nCOMP_WORDS=(penstock --config " +
                      directory_.path() +
                      "/par); COMP_CWORD=2; _penstock; "
                      "echo ${COMPREPLY[*]}\n");
  const std::string err = directory_.path() + "/stderr";
  EXPECT_EQ(Shell("bash " + script + " 2>" + err, err).out,
            "put\n--threads\n\n" + directory_.path() + "/part.json\n");
}

TEST_F(ClientCli, BenchFindsNoWrongByteAndCountsWhatItDid) {
  const Output bench = Run("bench --duration 2s --threads 2 --keys 200 --sizes 64B..100KiB --json");
  EXPECT_EQ(bench.exit_code, 0) << bench.out << bench.err;
  const Json result = bench.json();
  EXPECT_EQ(result["wrong"], 0);
  EXPECT_GT(result["operations"], 0);
  EXPECT_GT(result["hits"], 0);
  EXPECT_GT(result["fetch"]["p99_us"], 0);
}

TEST_F(ClientCli, BenchLeavesNothingBehindAndIsNotMisledByAnEarlierOne) {
  const double before = daemon_->Scrape()["penstock_chunks"];
  for (const char* seed : {"1", "1", "2"}) {
    const Output bench = Run(
        std::string("bench --duration 300ms --keys 20 --sizes 64B..4KiB --json --seed ") + seed);
    EXPECT_EQ(bench.exit_code, 0) << bench.out << bench.err;
    EXPECT_EQ(bench.json()["wrong"], 0);
    EXPECT_GT(bench.json()["stored"], 0);
  }
  EXPECT_EQ(daemon_->Scrape()["penstock_chunks"], before);
}

TEST_F(ClientCli, AnAddressAloneDoesNotShowAnotherDaemon) {
  const auto other = DaemonProcess::Start();
  ASSERT_TRUE(other.ok());
  const std::string err = directory_.path() + "/stderr";
  const std::string flags = " --address " + (*other)->address().ToString();
  const std::string environment = "PENSTOCK_ADMIN_ADDRESS=" + daemon_->admin() + " ";
  for (const char* command : {" ns", " top --once"}) {
    const Output output =
        Shell(environment + PENSTOCK_CLI_PATH + flags + command + " 2>" + err, err);
    EXPECT_EQ(output.exit_code, 2) << output.out;
    EXPECT_THAT(output.err, HasSubstr("--admin-address"));
  }
  const Output doctor = Shell(environment + PENSTOCK_CLI_PATH + flags + " doctor 2>" + err, err);
  EXPECT_THAT(doctor.out, HasSubstr("is another daemon's"));
}

TEST_F(ClientCli, BenchWithItsOwnDaemonSurvivesKills) {
  const Output bench = Run(std::string("bench --with-daemon --daemon ") + PenstockdPath() +
                           " --kill-every 1s --duration 6s --threads 2 --arena 64MiB --keys 500 "
                           "--sizes 1KiB..1MiB --json");
  EXPECT_EQ(bench.exit_code, 0) << bench.out << bench.err;
  const Json result = bench.json();
  EXPECT_EQ(result["wrong"], 0) << result["complaints"];
  EXPECT_GT(result["kills"], 0);
  EXPECT_GE(result["connects"], 1);
  EXPECT_GT(result["stored"], 0);
}

}  // namespace
}  // namespace penstock
