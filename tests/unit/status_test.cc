#include "common/base/status.h"

#include <gtest/gtest.h>

#include <set>

namespace penstock {
namespace {

// The golden table: a number that changes here breaks every peer and every script.
TEST(Status, CodesKeepTheirNumbersAndNames) {
  const std::pair<int, std::string_view> golden[] = {{0, "OK"},
                                                     {1, "MISS"},
                                                     {2, "ALREADY_EXISTS"},
                                                     {3, "BUFFER_TOO_SMALL"},
                                                     {4, "FORMAT_MISMATCH"},
                                                     {5, "CHECKSUM_MISMATCH"},
                                                     {6, "BUSY"},
                                                     {7, "ALL_PINNED"},
                                                     {8, "DEADLINE_EXCEEDED"},
                                                     {9, "CANCELLED"},
                                                     {10, "DISCONNECTED"},
                                                     {11, "FENCED"},
                                                     {12, "INVALID_ARGUMENT"},
                                                     {13, "VERSION_SKEW"},
                                                     {14, "TOO_LARGE"},
                                                     {15, "BAD_BUFFER"},
                                                     {16, "UNIMPLEMENTED"},
                                                     {17, "RESOURCE_EXHAUSTED"},
                                                     {18, "PERMISSION_DENIED"},
                                                     {19, "IO_ERROR"},
                                                     {20, "INTERNAL"},
                                                     {21, "CORRUPT_MESSAGE"}};
  ASSERT_EQ(std::size(golden), kCodeCount);
  std::set<std::string_view> names;
  for (const auto& [number, name] : golden) {
    EXPECT_EQ(CodeName(static_cast<Code>(number)), name);
    names.insert(name);
    EXPECT_EQ(CodeAdvice(static_cast<Code>(number)).empty(), number == 0) << name;
  }
  EXPECT_EQ(names.size(), kCodeCount);
}

TEST(Status, NumbersOfNewerPeersAreInternalErrors) {
  EXPECT_EQ(CodeFromWire(kCodeCount), Code::kInternal);
  EXPECT_EQ(CodeFromWire(65535), Code::kInternal);
  EXPECT_EQ(CodeFromWire(1), Code::kMiss);
}

TEST(Status, AnnotateKeepsTheCode) {
  const Status s = Status(Code::kBusy, "queue is full").Annotate("storing 3 chunks");
  EXPECT_EQ(s.ToString(), "BUSY: storing 3 chunks: queue is full");
  EXPECT_TRUE(Status::Ok().Annotate("anything").ok());
}

Result<int> Half(int n) {
  if (n % 2 != 0) return Status(Code::kInvalidArgument, "odd");
  return n / 2;
}
Status Quarter(int n, int* out) {
  PENSTOCK_ASSIGN_OR_RETURN(const int half, Half(n));
  PENSTOCK_ASSIGN_OR_RETURN(*out, Half(half));
  return Status::Ok();
}

TEST(Result, MacrosReturnTheFirstError) {
  int out = 0;
  EXPECT_TRUE(Quarter(8, &out).ok());
  EXPECT_EQ(out, 2);
  EXPECT_EQ(Quarter(6, &out).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace penstock
