// Arena: the memory is there, shared the way it should be, or the error says why not.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "server/daemon/machine/machine.h"
#include "server/daemon/store/arena.h"
#include "tests/sanitizers/sanitizers.h"

namespace penstock {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = 1u << 20;

// Runs `body` in a child, so that its limits are not ours; what it returns is the exit status.
int InChild(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// The error of Create() under a limit, judged in the child: 0 when all parts are in the message.
int MessageUnderLimit(__rlimit_resource resource, rlim_t limit, const ArenaOptions& options,
                      const std::vector<std::string>& parts) {
  return InChild([&] {
    const struct rlimit value = {limit, limit};
    if (setrlimit(resource, &value) != 0) return 1;
    const auto arena = Arena::Create(options);
    if (arena.ok()) return 2;
    if (arena.status().code() != Code::kResourceExhausted) return 3;
    for (const std::string& part : parts) {
      if (arena.status().message().find(part) == std::string::npos) {
        fprintf(stderr, "%s lacks %s\n", arena.status().ToString().c_str(), part.c_str());
        return 4;
      }
    }
    return 0;
  });
}

TEST(StoreArena, IsZeroedWritableAndAtLeastAsLargeAsAsked) {
  auto arena = Arena::Create({.bytes = kMiB + 1, .pages = PageKind::kOrdinary});
  ASSERT_TRUE(arena.ok()) << arena.status().ToString();
  EXPECT_GE((*arena)->size(), kMiB + 1);
  EXPECT_EQ((*arena)->size() % (*arena)->page_bytes(), 0u);
  for (const std::byte b : (*arena)->span()) ASSERT_EQ(b, std::byte{0});
  std::memset((*arena)->base(), 1, (*arena)->size());
  struct stat info;
  ASSERT_EQ(fstat((*arena)->readable_fd(), &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_size), (*arena)->size());
}

TEST(StoreArena, OthersCanMapTheDescriptorReadOnlyOnly) {
  auto arena = Arena::Create({.bytes = kMiB, .pages = PageKind::kOrdinary});
  ASSERT_TRUE(arena.ok());
  std::memset((*arena)->base(), 7, kMiB);
  EXPECT_EQ(mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, (*arena)->readable_fd(), 0),
            MAP_FAILED);
  void* view = mmap(nullptr, kMiB, PROT_READ, MAP_SHARED, (*arena)->readable_fd(), 0);
  ASSERT_NE(view, MAP_FAILED);
  EXPECT_EQ(static_cast<char*>(view)[kMiB - 1], 7);
  EXPECT_NE(mprotect(view, kMiB, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(pwrite((*arena)->readable_fd(), "x", 1, 0), -1);
  munmap(view, kMiB);
}

TEST(StoreArena, CanNeitherShrinkNorGrowUnderThoseWhoMapIt) {
  auto arena = Arena::Create({.bytes = kMiB, .pages = PageKind::kOrdinary});
  ASSERT_TRUE(arena.ok());
  EXPECT_NE(ftruncate((*arena)->readable_fd(), 0), 0);
  EXPECT_NE(ftruncate((*arena)->readable_fd(), 2 * kMiB), 0);
}

TEST(StoreArena, PrefaultMakesEveryPageResident) {
  auto arena = Arena::Create({.bytes = 4 * kMiB, .pages = PageKind::kOrdinary, .prefault = true});
  ASSERT_TRUE(arena.ok()) << arena.status().ToString();
  std::vector<unsigned char> resident((*arena)->size() / (*arena)->page_bytes());
  ASSERT_EQ(mincore((*arena)->base(), (*arena)->size(), resident.data()), 0);
  for (const unsigned char page : resident) ASSERT_EQ(page & 1, 1);
}

TEST(StoreArena, TransparentHugePagesAreAdviceOnly) {
  auto arena = Arena::Create({.bytes = 4 * kMiB, .pages = PageKind::kTransparentHuge});
  ASSERT_TRUE(arena.ok()) << arena.status().ToString();
  std::memset((*arena)->base(), 1, (*arena)->size());
}

TEST(StoreArena, ASizeThatMakesNoSenseIsInvalid) {
  for (const uint64_t bytes : {uint64_t{0}, UINT64_MAX, uint64_t{1} << 63}) {
    EXPECT_EQ(Arena::Create({.bytes = bytes}).status().code(), Code::kInvalidArgument) << bytes;
  }
}

TEST(StoreArena, AddressSpaceLimitIsNamedWithBothAmounts) {
  if (kSanitized) GTEST_SKIP() << "shadow memory needs all of the address space";
  EXPECT_EQ(MessageUnderLimit(RLIMIT_AS, 256 * kMiB, {.bytes = 1024 * kMiB},
                              {"RLIMIT_AS", "1073741824", "268435456"}),
            0);
}

TEST(StoreArena, FileSizeLimitIsAnErrorAndNotASignal) {
  EXPECT_EQ(MessageUnderLimit(RLIMIT_FSIZE, 8 * kMiB, {.bytes = 16 * kMiB},
                              {"RLIMIT_FSIZE", "16777216", "8388608"}),
            0);
}

TEST(StoreArena, DescriptorLimitIsNamed) {
  EXPECT_EQ(MessageUnderLimit(RLIMIT_NOFILE, 0, {.bytes = kMiB}, {"RLIMIT_NOFILE"}), 0);
}

TEST(StoreArena, MemlockLimitIsNamedWithBothAmounts) {
  if (Machine::Probe().may_lock_beyond_limit) {
    // The limit does not bind a process with this capability: then locking must really work.
    auto arena = Arena::Create({.bytes = kMiB, .pages = PageKind::kOrdinary, .lock = true});
    ASSERT_TRUE(arena.ok()) << arena.status().ToString();
    EXPECT_TRUE((*arena)->locked());
    return;
  }
  EXPECT_EQ(MessageUnderLimit(RLIMIT_MEMLOCK, 65536, {.bytes = kMiB, .lock = true},
                              {"RLIMIT_MEMLOCK", "1048576", "65536"}),
            0);
}

TEST(StoreArena, MoreThanTheMachineHasIsRefusedBeforeTheFirstPageIsTouched) {
  const auto arena = Arena::Create({.bytes = uint64_t{1} << 46, .prefault = true});
  ASSERT_FALSE(arena.ok());
  EXPECT_EQ(arena.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(arena.status().message(), HasSubstr("70368744177664"));
}

TEST(StoreArena, HugePagesThatAreNotThereAreRefusedWithBothAmounts) {
  const auto arena = Arena::Create({.bytes = uint64_t{1} << 46, .pages = PageKind::kHugeTlb});
  ASSERT_FALSE(arena.ok());
  EXPECT_EQ(arena.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(arena.status().message(), HasSubstr("huge pages"));
}

}  // namespace
}  // namespace penstock
