#include "server/daemon/machine/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "server/daemon/machine/sizing.h"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kMiB = uint64_t{1} << 20;

// A /proc and /sys of its own.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "penstock-machine-XXXXXX");
    path_ = mkdtemp(name.data());
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path full = path_ + file;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

FakeRoot& WithMemory(FakeRoot& root) {
  root.Write("/proc/meminfo",
             "MemTotal:       33554432 kB\nMemFree: 1 kB\nMemAvailable:   16777216 kB\n");
  return root;
}

Machine Roomy() {
  Machine machine;
  machine.memory_total = 64 * kGiB;
  machine.memory_available = 40 * kGiB;
  machine.descriptors = 65536;
  return machine;
}

TEST(Machine, ReadsTheHostsMemory) {
  FakeRoot root;
  const Machine machine = Machine::Probe(WithMemory(root).path());
  EXPECT_EQ(machine.memory_total, 32 * kGiB);
  EXPECT_EQ(machine.memory_available, 16 * kGiB);
  EXPECT_EQ(machine.cgroup_limit, kNoLimit);
  EXPECT_EQ(machine.MemoryUsable(), 16 * kGiB);
}

TEST(Machine, TheTightestVersion2GroupOnTheWayToTheRootCounts) {
  FakeRoot root;
  WithMemory(root).Write("/proc/self/cgroup", "0::/kubepods/pod1/box\n");
  root.Write("/sys/fs/cgroup/kubepods/pod1/box/memory.max", "max\n");
  root.Write("/sys/fs/cgroup/kubepods/pod1/memory.max", "4294967296\n");
  root.Write("/sys/fs/cgroup/kubepods/pod1/memory.current", "1073741824\n");
  root.Write("/sys/fs/cgroup/kubepods/memory.max", "8589934592\n");
  const Machine machine = Machine::Probe(root.path());
  EXPECT_EQ(machine.cgroup_limit, 4 * kGiB);
  EXPECT_EQ(machine.MemoryUsable(), 3 * kGiB);
  EXPECT_THAT(machine.cgroup_source, HasSubstr("/kubepods/pod1/memory.max"));
}

TEST(Machine, AContainersOwnVersion2GroupIsAtTheMount) {
  FakeRoot root;
  WithMemory(root).Write("/proc/self/cgroup", "0::/../../elsewhere\n");
  root.Write("/sys/fs/cgroup/memory.max", "2147483648\n");
  root.Write("/sys/fs/cgroup/memory.current", "3221225472\n");  // Over the limit for a moment.
  const Machine machine = Machine::Probe(root.path());
  EXPECT_EQ(machine.cgroup_limit, 2 * kGiB);
  EXPECT_EQ(machine.MemoryUsable(), 0u);
}

TEST(Machine, AVersion1GroupCountsAndItsAbsurdNumberMeansNoLimit) {
  FakeRoot root;
  WithMemory(root).Write("/proc/self/cgroup", "4:memory:/app/x\n1:cpu,cpuacct:/app\n0::/\n");
  root.Write("/sys/fs/cgroup/memory/app/x/memory.limit_in_bytes", "9223372036854771712\n");
  root.Write("/sys/fs/cgroup/memory/app/memory.limit_in_bytes", "1073741824\n");
  root.Write("/sys/fs/cgroup/memory/app/memory.usage_in_bytes", "268435456\n");
  root.Write("/sys/fs/cgroup/cpu/app/cpu.cfs_quota_us", "50000\n");
  root.Write("/sys/fs/cgroup/cpu/app/cpu.cfs_period_us", "100000\n");
  const Machine machine = Machine::Probe(root.path());
  EXPECT_EQ(machine.cgroup_limit, kGiB);
  EXPECT_EQ(machine.MemoryUsable(), 768 * kMiB);
  EXPECT_EQ(machine.cores, 1u);
}

TEST(Machine, UnreadableFilesAreNoLimits) {
  FakeRoot root;
  root.Write("/proc/self/cgroup", "garbage\n::::\n0::\n");
  root.Write("/sys/fs/cgroup/memory.max", "12 apples\n");
  const Machine machine = Machine::Probe(root.path());
  EXPECT_EQ(machine.cgroup_limit, kNoLimit);
  EXPECT_GE(machine.cores, 1u);
  EXPECT_EQ(machine.memory_total, 0u);
}

TEST(Machine, TheRealOneHasMemoryAndCores) {
  const Machine machine = Machine::Probe();
  EXPECT_GT(machine.memory_total, 0u);
  EXPECT_GT(machine.MemoryUsable(), 0u);
  EXPECT_GT(machine.address_space_used, 0u);
  EXPECT_GE(machine.cores, 1u);
  EXPECT_THAT(machine.ToString(), HasSubstr("RLIMIT_NOFILE"));
}

TEST(Machine, TheDescriptorLimitIsRaisedToTheHardOne) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 128;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(RaiseDescriptorLimit(), before.rlim_max == RLIM_INFINITY ? kNoLimit : before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(ArenaWish, TellsAmountsPercentagesAndAutoApart) {
  EXPECT_EQ(ArenaWish::Parse("auto")->kind, ArenaWish::Kind::kAuto);
  EXPECT_EQ(ArenaWish::Parse("40%")->amount, 40u);
  EXPECT_EQ(ArenaWish::Parse("12GiB")->amount, 12 * kGiB);
  EXPECT_EQ(ArenaWish::Parse("1.5 GiB")->amount, kGiB + kGiB / 2);
  EXPECT_EQ(ArenaWish::Parse("10GB")->amount, 10'000'000'000u);
  EXPECT_EQ(ArenaWish::Parse("33554432")->amount, 32 * kMiB);
}

TEST(ArenaWish, RefusesWhatCouldBeMeantInTwoWays) {
  for (const char* text : {"", "x", "12gb", "12Gi", "-1GiB", "0%", "96%", "1.5%", "12GiB,",
                           "99999999999TiB", "nan", "inf"}) {
    EXPECT_EQ(ArenaWish::Parse(text).status().code(), Code::kInvalidArgument) << text;
    EXPECT_THAT(ArenaWish::Parse(text).status().message(), HasSubstr(text)) << text;
  }
}

TEST(Sizing, ByDefaultAQuarterOfWhatIsUsable) {
  const auto sizing = DecideSizing(Roomy(), {}, 4096, 9);
  ASSERT_TRUE(sizing.ok());
  EXPECT_EQ(sizing->arena_bytes, 10 * kGiB);
  EXPECT_EQ(sizing->max_sessions, 4096u);
  EXPECT_THAT(sizing->arena_reason, HasSubstr("25% of the 40.0 GiB"));
  EXPECT_THAT(sizing->warnings, IsEmpty());
}

TEST(Sizing, AnExplicitSizeIsKeptOrRefusedButNeverCut) {
  Machine machine = Roomy();
  const ArenaWish wish{ArenaWish::Kind::kBytes, 39 * kGiB};
  EXPECT_EQ(DecideSizing(machine, wish, 64, 9)->arena_bytes, 39 * kGiB);
  machine.cgroup_limit = 8 * kGiB;
  machine.cgroup_source = "/sys/fs/cgroup/memory.max";
  const Status refused = DecideSizing(machine, wish, 64, 9).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("39.0 GiB"));
  EXPECT_THAT(refused.message(), HasSubstr("/sys/fs/cgroup/memory.max"));
  EXPECT_THAT(refused.message(), HasSubstr("7.75 GiB"));
}

TEST(Sizing, ALimitOnTheAddressSpaceCutsTheDefaultAndSaysSo) {
  Machine machine = Roomy();
  machine.address_space = 3 * kGiB;
  machine.address_space_used = kGiB / 2;
  const auto sizing = DecideSizing(machine, {}, 64, 9);
  ASSERT_TRUE(sizing.ok());
  EXPECT_EQ(sizing->arena_bytes, kGiB + kGiB / 2);
  EXPECT_THAT(sizing->arena_reason, HasSubstr("RLIMIT_AS"));
  machine.address_space = kGiB;
  const Status refused = DecideSizing(machine, {}, 64, 9).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("RLIMIT_AS"));
}

TEST(Sizing, TooFewDescriptorsCutTheSessionsOrRefuseToStart) {
  Machine machine = Roomy();
  machine.descriptors = 1024;
  const auto sizing = DecideSizing(machine, {}, 4096, 9);
  ASSERT_TRUE(sizing.ok());
  EXPECT_EQ(sizing->max_sessions, (1024u - 64) / 9);
  EXPECT_THAT(sizing->warnings, ElementsAre(HasSubstr("RLIMIT_NOFILE is 1024")));
  machine.descriptors = 32;
  const Status refused = DecideSizing(machine, {}, 4096, 9).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("RLIMIT_NOFILE is 32"));
}

TEST(Sizing, ALowMemlockLimitIsAWarningOnlyWhereItBinds) {
  Machine machine = Roomy();
  machine.memlock = 64 * 1024;
  EXPECT_THAT(DecideSizing(machine, {}, 64, 9)->warnings,
              ElementsAre(HasSubstr("RLIMIT_MEMLOCK is 64.0 KiB")));
  machine.may_lock_beyond_limit = true;
  EXPECT_THAT(DecideSizing(machine, {}, 64, 9)->warnings, IsEmpty());
}

TEST(Sizing, AWishTooSmallToBeUsefulIsRefused) {
  const auto tiny = DecideSizing(Roomy(), {ArenaWish::Kind::kBytes, kMiB}, 64, 9);
  EXPECT_EQ(tiny.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(tiny.status().message(), HasSubstr("16.0 MiB"));
}

TEST(HumanBytes, KnowsWhatHasNoLimit) {
  EXPECT_EQ(HumanBytes(kNoLimit), "unlimited");
  EXPECT_THAT(HumanBytes(64 * 1024), HasSubstr("KiB"));
}

}  // namespace
}  // namespace penstock
