#include "tests/integration/daemon_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "common/transport/socket.h"
#include "tests/integration/daemon_raw_client.h"
#include "tests/sanitizers/sanitizers.h"

namespace penstock {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::ContainsRegex;
using testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Runs penstockd to its end. Its exit status and what it wrote.
struct Ended {
  int exit = -1;
  int signal = 0;
  std::string log;
};
Ended RunToEnd(std::vector<std::string> args, std::vector<std::pair<int, uint64_t>> limits = {},
               std::vector<std::string> environment = {}) {
  const TempDir directory;
  args.insert(args.begin(), PenstockdPath());
  const auto process = Process::Start({.command = args,
                                       .log_path = directory.path() + "/log",
                                       .limits = std::move(limits),
                                       .environment = std::move(environment)});
  Ended ended;
  if (!process.ok()) return ended;
  const auto status = (*process)->WaitExit(std::chrono::seconds(60));
  if (!status) return ended;
  if (WIFEXITED(*status)) ended.exit = WEXITSTATUS(*status);
  if (WIFSIGNALED(*status)) ended.signal = WTERMSIG(*status);
  ended.log = (*process)->Log();
  return ended;
}

const std::vector<std::string> kFreePorts = {"--listen=tcp://127.0.0.1:0",
                                             "--admin.address=127.0.0.1:0",
                                             "--metrics.address=none", "--arena.size=32MiB"};

std::vector<std::string> With(std::vector<std::string> args, const std::string& more) {
  args.push_back(more);
  return args;
}

TEST(DaemonProcessTest, ServesUntilItIsToldToEnd) {
  auto daemon = DaemonProcess::Start();
  ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
  {
    const auto client = RawClient::Connect((*daemon)->address());
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    const ChunkKey key = (*client)->Key("a");
    EXPECT_EQ((*client)->Put(key, "bytes"), Code::kOk);
    EXPECT_EQ(*(*client)->Get(key), "bytes");
    EXPECT_EQ((*daemon)->Scrape()["penstock_store_items_total{outcome=\"committed\",reason=\"\"}"],
              1);
    (*daemon)->process().Signal(SIGTERM);
    EXPECT_THAT((*client)->WaitClosed().ToString(), HasSubstr("shutting down"));
  }
  const auto status = (*daemon)->process().WaitExit();
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *status;
  EXPECT_NE(access((*daemon)->ready_path().c_str(), F_OK), 0) << "the ready file stays behind";
  const std::string log = (*daemon)->process().Log();
  EXPECT_THAT(log, HasSubstr("serving"));
  EXPECT_THAT(log, HasSubstr("arena of"));
  EXPECT_THAT(log, HasSubstr("stopped"));
}

TEST(DaemonProcessTest, ASecondSignalEndsItAtOnce) {
  auto daemon = DaemonProcess::Start({.args = {"--stop_grace=600s"}});
  ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
  const auto client = RawClient::Connect((*daemon)->address());
  ASSERT_TRUE(client.ok());
  StoreBuilder store((*client)->fingerprint());
  store.Add((*client)->Key("never"), std::string(1000, 'x'));
  store.request.deadline_ms = 600000;
  const uint64_t id = (*client)->Send(MessageType::kStore, store.Encode());
  ASSERT_TRUE((*client)->TakeGrant(id).ok());
  const std::string log_path =
      (*daemon)->ready_path().substr(0, (*daemon)->ready_path().rfind('/')) + "/log";
  (*daemon)->process().Signal(SIGTERM);
  ASSERT_TRUE(WaitForText(log_path, "stopping", (*daemon)->process(), std::chrono::seconds(30)));
  (*daemon)->process().Signal(SIGINT);
  const auto status = (*daemon)->process().WaitExit();
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 128 + SIGINT) << *status;
}

TEST(DaemonProcessTest, ItsPortCanBeTakenAgainAtOnceAfterAKill) {
  std::string listen = "tcp://127.0.0.1:0";
  std::string previous;
  for (int round = 0; round < 5; ++round) {
    auto daemon = DaemonProcess::Start({.listen = listen});
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    listen = (*daemon)->address().ToString();
    EXPECT_NE((*daemon)->incarnation(), previous);
    previous = (*daemon)->incarnation();
    auto client = RawClient::Connect((*daemon)->address());
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    EXPECT_EQ((*client)->Put((*client)->Key("a"), "bytes"), Code::kOk);
    (*daemon)->process().Signal(SIGKILL);
    EXPECT_EQ((*client)->WaitClosed().code(), Code::kDisconnected);
  }
}

TEST(DaemonProcessTest, ATakenPortFailsTheStartAndNamesItAndItsOwner) {
  auto first = DaemonProcess::Start();
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  const std::string address = (*first)->address().ToString();
  const Ended second = RunToEnd({"--listen=" + address, "--admin.address=127.0.0.1:0",
                                 "--metrics.address=none", "--arena.size=32MiB"});
  EXPECT_EQ(second.exit, 1);
  EXPECT_THAT(second.log, HasSubstr(std::to_string((*first)->address().port)));
  EXPECT_THAT(second.log, HasSubstr("pid " + std::to_string((*first)->pid())));
}

TEST(DaemonProcessTest, PortZeroIsAPortOfItsOwnForEveryInterfaceAndTheReadyFileTellsWhich) {
  struct Hosts {
    std::string metrics, admin;
  };
  std::vector<Hosts> all = {{"127.0.0.1", "127.0.0.1"}, {"0.0.0.0", "0.0.0.0"}};
  const auto v6 = Resolve({.host = "::1"}, /*passive=*/true);
  if (v6.ok() && ListenOn(v6->front(), true, 1).ok()) all.push_back({"127.0.0.1", "[::1]"});
  std::vector<std::unique_ptr<DaemonProcess>> daemons;
  std::set<std::string> addresses;
  for (int round = 0; round < 3; ++round) {
    for (const Hosts& hosts : all) {
      auto daemon = DaemonProcess::Start(
          {.args = {"--arena.size=16MiB", "--metrics.address=" + hosts.metrics + ":0",
                    "--admin.address=" + hosts.admin + ":0"}});
      ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
      for (const auto& [address, host] : {std::pair((*daemon)->admin(), hosts.admin),
                                          std::pair((*daemon)->metrics(), hosts.metrics)}) {
        EXPECT_TRUE(address.starts_with(host + ":") && !address.ends_with(":0")) << address;
        addresses.insert(address.substr(address.rfind(':')));
      }
      EXPECT_EQ((*daemon)->Scrape()["penstock_health_live"], 1) << (*daemon)->metrics();
      daemons.push_back(std::move(*daemon));
    }
  }
  EXPECT_EQ(addresses.size(), 2 * daemons.size());
}

TEST(DaemonProcessTest, SixteenAtOnceOnOnePortAreOneDaemonAndFifteenClearRefusals) {
  // A port that was free a moment ago.
  uint16_t port = 0;
  {
    auto probe = DaemonProcess::Start();
    ASSERT_TRUE(probe.ok()) << probe.status().ToString();
    port = (*probe)->address().port;
  }
  const TempDir directory;
  std::vector<std::unique_ptr<Process>> all;
  for (int i = 0; i < 16; ++i) {
    const std::string number = std::to_string(i);
    auto process = Process::Start(
        {.command = {PenstockdPath(), "--listen=tcp://127.0.0.1:" + std::to_string(port),
                     "--admin.address=127.0.0.1:0", "--metrics.address=none", "--arena.size=16MiB",
                     "--ready_file=" + directory.path() + "/ready" + number},
         .log_path = directory.path() + "/log" + number});
    ASSERT_TRUE(process.ok());
    all.push_back(std::move(*process));
  }
  int refused = 0, serving = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string ready = directory.path() + "/ready" + std::to_string(i);
    ASSERT_TRUE(WaitForFile(ready, *all[i], std::chrono::seconds(100)) ||
                all[i]->WaitExit(Duration::zero()).has_value());
    const auto status = all[i]->WaitExit(Duration::zero());
    if (!status) {
      ++serving;
      continue;
    }
    ++refused;
    EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 1) << *status;
    EXPECT_THAT(all[i]->Log(), HasSubstr(std::to_string(port)));
  }
  EXPECT_EQ(serving, 1);
  EXPECT_EQ(refused, 15);
}

TEST(DaemonProcessTest, WithoutAnyConfigurationItServesAndSaysWhatItChose) {
  const TempDir directory;
  const std::string log = directory.path() + "/log";
  auto process = Process::Start({.command = {PenstockdPath()},
                                 .log_path = log,
                                 .environment = {"XDG_RUNTIME_DIR=" + directory.path()},
                                 .own_network = true});
  ASSERT_TRUE(process.ok());
  const bool serves = WaitForText(log, "serving", **process, std::chrono::seconds(60));
  if (const auto status = (*process)->WaitExit(Duration::zero())) {
    if (WIFEXITED(*status) && WEXITSTATUS(*status) == kNoOwnNetwork) {
      GTEST_SKIP() << "network namespaces are not permitted here";
    }
  }
  ASSERT_TRUE(serves) << (*process)->Log();
  const std::string text = (*process)->Log();
  EXPECT_THAT(text, HasSubstr("tcp://0.0.0.0:7411"));
  EXPECT_THAT(text, HasSubstr("127.0.0.1:7412"));
  EXPECT_THAT(text, HasSubstr("arena of"));
  EXPECT_THAT(text, HasSubstr("by default 25%"));
  auto client = RawClient::Connect(
      {.kind = Address::Kind::kUnix, .host = directory.path() + "/penstock.sock"});
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  EXPECT_EQ((*client)->Put((*client)->Key("a"), "bytes"), Code::kOk);
}

TEST(DaemonProcessTest, AWrongSettingIsNamedWithItsSourceAndAGuess) {
  const Ended typo = RunToEnd({"--arena.sise=1GiB"});
  EXPECT_EQ(typo.exit, 2);
  EXPECT_THAT(typo.log, HasSubstr("arena.sise"));
  EXPECT_THAT(typo.log, HasSubstr("arena.size"));
  for (const std::string value : {"1gb", "-1", "lots", "1GiB,"}) {
    const Ended wrong = RunToEnd({"--arena.size=" + value});
    EXPECT_EQ(wrong.exit, 2) << value;
    EXPECT_THAT(wrong.log, HasSubstr(value));
  }
  const Ended variable = RunToEnd({}, {}, {"PENSTOCK_ARENA_SIZE=plenty"});
  EXPECT_EQ(variable.exit, 2);
  EXPECT_THAT(variable.log, HasSubstr("PENSTOCK_ARENA_SIZE"));
  const TempDir directory;
  std::ofstream(directory.path() + "/p.yaml") << "arena:\n  size: 1GiB\nlimits:\n  sesions: 5\n";
  const Ended file = RunToEnd({"--config=" + directory.path() + "/p.yaml"});
  EXPECT_EQ(file.exit, 2);
  EXPECT_THAT(file.log, HasSubstr("sesions"));
  EXPECT_THAT(file.log, HasSubstr("p.yaml:4"));
  const Ended wires = RunToEnd(With(kFreePorts, "--wires=ucx"));
  EXPECT_NE(wires.exit, 0);
  EXPECT_THAT(wires.log, HasSubstr("add tcp"));
}

TEST(DaemonProcessTest, LimitsOfTheSystemThatAreTooSmallAreNamedWithBothAmounts) {
  const Ended files = RunToEnd(kFreePorts, {{RLIMIT_NOFILE, 32}});
  EXPECT_EQ(files.exit, 1);
  EXPECT_THAT(files.log, HasSubstr("RLIMIT_NOFILE is 32"));
  if (!kSanitized) {  // Shadow memory needs all of the address space.
    const Ended space = RunToEnd(kFreePorts, {{RLIMIT_AS, uint64_t{512} << 20}});
    EXPECT_EQ(space.exit, 1) << space.log;
    EXPECT_THAT(space.log, HasSubstr("RLIMIT_AS"));
  }
  if (geteuid() != 0) {  // Root may lock what it likes.
    const Ended locked = RunToEnd(With(kFreePorts, "--arena.lock=true"), {{RLIMIT_MEMLOCK, 65536}});
    EXPECT_EQ(locked.exit, 1);
    EXPECT_THAT(locked.log, HasSubstr("MEMLOCK"));
  }
  const Ended huge = RunToEnd(With(
      With({kFreePorts.begin(), kFreePorts.end() - 1}, "--arena.size=900TiB"), "--log.level=info"));
  EXPECT_EQ(huge.exit, 1);
  EXPECT_THAT(huge.log, HasSubstr("900 TiB"));
}

TEST(DaemonProcessTest, AConfigurationFileIsTakenAndShown) {
  const TempDir directory;
  std::ofstream(directory.path() + "/p.yaml") << "threads:\n  data: 1\nlimits:\n  sessions: 17\n";
  auto daemon = DaemonProcess::Start({.args = {"--config=" + directory.path() + "/p.yaml"}});
  ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
  EXPECT_THAT((*daemon)->process().Log(), HasSubstr("limits.sessions"));
  EXPECT_THAT((*daemon)->process().Log(), HasSubstr("1 data thread"));
}

TEST(DaemonProcessTest, HelpIsWhatTheManualShows) {
  const Ended help = RunToEnd({"--help"});
  EXPECT_EQ(help.exit, 0);
  const std::string manual = ReadAll(PENSTOCK_SOURCE_DIR "/docs/operations/daemon.md");
  const std::string begin = "<!-- begin penstockd --help -->\n```text\n";
  const size_t from = manual.find(begin);
  const size_t to = manual.find("```\n<!-- end penstockd --help -->");
  ASSERT_NE(from, manual.npos);
  ASSERT_NE(to, manual.npos);
  EXPECT_EQ(manual.substr(from + begin.size(), to - from - begin.size()), help.log)
      << "docs/operations/daemon.md shows another text than penstockd --help";
  EXPECT_EQ(RunToEnd({"--version"}).exit, 0);
}

TEST(DaemonProcessTest, NothingIsLeftInSharedMemoryOrTemporaryFolders) {
  const auto listing = [] {
    std::vector<std::string> names;
    for (const char* directory : {"/dev/shm", "/tmp"}) {
      std::error_code ignored;
      for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
        const std::string name = entry.path();
        if (name.find("penstock") != name.npos && name.find("penstock-test") == name.npos) {
          names.push_back(name);
        }
      }
    }
    return names;
  };
  const auto before = listing();
  {
    auto daemon = DaemonProcess::Start();
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    auto client = RawClient::Connect((*daemon)->address());
    ASSERT_TRUE(client.ok());
    EXPECT_EQ((*client)->Put((*client)->Key("a"), std::string(1u << 20, 'x')), Code::kOk);
    (*daemon)->process().Signal(SIGKILL);
    (*daemon)->process().WaitExit();
  }
  for (const std::string& name : listing()) EXPECT_THAT(before, Contains(name));
}

}  // namespace
}  // namespace penstock
