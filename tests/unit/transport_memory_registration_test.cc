#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "common/transport/memory_registration.h"

namespace penstock {
namespace {

// Four pages: readable and writable, read only, without access, readable and writable.
class Pages {
 public:
  Pages() : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    void* const base =
        mmap(nullptr, 4 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(base, MAP_FAILED);
    base_ = static_cast<std::byte*>(base);
    EXPECT_EQ(mprotect(base_ + page_, page_, PROT_READ), 0);
    EXPECT_EQ(mprotect(base_ + 2 * page_, page_, PROT_NONE), 0);
  }
  ~Pages() { munmap(base_, 4 * page_); }

  // `length` bytes from the beginning of page `page` plus `offset`.
  MutableByteSpan At(size_t page, size_t offset, size_t length) {
    return {base_ + page * page_ + offset, length};
  }
  size_t page() const { return page_; }

 private:
  const size_t page_;
  std::byte* base_ = nullptr;
};

Code CodeOf(MutableByteSpan memory, bool writable = true) {
  return MemoryRegistration::Create(memory, {.writable = writable}).status().code();
}

TEST(MemoryRegistration, TakesMemoryThatIsThere) {
  Pages pages;
  EXPECT_EQ(CodeOf(pages.At(0, 0, pages.page())), Code::kOk);
  EXPECT_EQ(CodeOf(pages.At(0, 1, pages.page() - 1)), Code::kOk);
  EXPECT_EQ(CodeOf(pages.At(1, 0, 1), /*writable=*/false), Code::kOk);
  EXPECT_EQ(CodeOf(pages.At(0, 0, 2 * pages.page()), /*writable=*/false), Code::kOk);
  std::vector<std::byte> heap(100000);
  EXPECT_EQ(CodeOf(heap), Code::kOk);
}

TEST(MemoryRegistration, RefusesMemoryThatIsNotThereOrNotWritable) {
  Pages pages;
  EXPECT_EQ(CodeOf({}), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(pages.At(0, 1, pages.page())), Code::kBadBuffer) << "one byte too many";
  EXPECT_EQ(CodeOf(pages.At(1, 0, 1)), Code::kBadBuffer);
  EXPECT_EQ(CodeOf(pages.At(2, 0, 1), /*writable=*/false), Code::kBadBuffer);
  EXPECT_EQ(CodeOf(pages.At(1, 0, 3 * pages.page()), /*writable=*/false), Code::kBadBuffer);
  EXPECT_EQ(CodeOf({reinterpret_cast<std::byte*>(16), 16}), Code::kBadBuffer);
  EXPECT_EQ(CodeOf({reinterpret_cast<std::byte*>(SIZE_MAX - 4), 16}), Code::kBadBuffer);
  EXPECT_EQ(CodeOf({static_cast<std::byte*>(nullptr), 16}), Code::kBadBuffer);
}

bool Registered(MutableByteSpan memory, bool writable = true) {
  const iovec piece{memory.data(), memory.size()};
  return IsRegistered({&piece, 1}, writable);
}

TEST(MemoryRegistration, KnowsWhatIsRegisteredAndForHowLong) {
  Pages pages;
  const auto all = pages.At(0, 0, pages.page());
  EXPECT_FALSE(Registered(all));
  {
    const auto registration = MemoryRegistration::Create(all, {});
    ASSERT_TRUE(registration.ok());
    EXPECT_EQ((*registration)->memory().data(), all.data());
    EXPECT_TRUE(Registered(all));
    EXPECT_TRUE(Registered(all.subspan(5, 10)));
    EXPECT_FALSE(Registered(pages.At(0, 1, pages.page()))) << "one byte too many";
    EXPECT_FALSE(Registered({all.data() - 1, 10}));
    EXPECT_FALSE(Registered({all.data() + 8, SIZE_MAX - 4}));
    EXPECT_TRUE(Registered(all.first(0)));
  }
  EXPECT_FALSE(Registered(all));
}

TEST(MemoryRegistration, ReadOnlyRegistrationsAreNotWrittenTo) {
  Pages pages;
  const auto registration =
      MemoryRegistration::Create(pages.At(0, 0, 2 * pages.page()), {.writable = false});
  ASSERT_TRUE(registration.ok());
  EXPECT_TRUE(Registered(pages.At(0, 0, 10), /*writable=*/false));
  EXPECT_FALSE(Registered(pages.At(0, 0, 10), /*writable=*/true));
}

TEST(MemoryRegistration, OverlappingRegistrationsEndOneByOne) {
  std::vector<std::byte> heap(10000);
  const MutableByteSpan all(heap);
  auto whole = std::move(MemoryRegistration::Create(all, {})).value();
  auto twice = std::move(MemoryRegistration::Create(all, {})).value();
  auto part = std::move(MemoryRegistration::Create(all.subspan(4000, 10), {})).value();
  EXPECT_TRUE(Registered(all.subspan(4000, 100))) << "the nearest begin is not the longest";
  whole.reset();
  EXPECT_TRUE(Registered(all.subspan(4000, 100)));
  twice.reset();
  EXPECT_FALSE(Registered(all.subspan(4000, 100)));
  EXPECT_TRUE(Registered(all.subspan(4000, 10)));
}

TEST(MemoryRegistration, APieceThatStraddlesTwoRegistrationsIsInNone) {
  std::vector<std::byte> heap(2000);
  const MutableByteSpan all(heap);
  const auto first = MemoryRegistration::Create(all.first(1000), {});
  const auto second = MemoryRegistration::Create(all.subspan(1000), {});
  EXPECT_TRUE(Registered(all.first(1000)));
  EXPECT_TRUE(Registered(all.subspan(1000)));
  EXPECT_FALSE(Registered(all.subspan(999, 2)));
}

}  // namespace
}  // namespace penstock
