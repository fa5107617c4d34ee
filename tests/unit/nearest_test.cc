#include "common/base/nearest.h"

#include <gtest/gtest.h>

#include <string>

namespace penstock {
namespace {

TEST(EditDistance, CountsEachKindOfMistakeOnce) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("abc", ""), 3u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("model", "model"), 0u);
  EXPECT_EQ(EditDistance("modl", "model"), 1u);
  EXPECT_EQ(EditDistance("modeel", "model"), 1u);
  EXPECT_EQ(EditDistance("nodel", "model"), 1u);
  EXPECT_EQ(EditDistance("modle", "model"), 1u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
}

TEST(Nearest, GivesTheClosestOrNothing) {
  const std::string_view names[] = {"listen", "dram_bytes", "dram_headroom", "log_level"};
  EXPECT_EQ(Nearest("lisen", names), "listen");
  EXPECT_EQ(Nearest("dram_byte", names), "dram_bytes");
  EXPECT_EQ(Nearest("loglevel", names), "log_level");
  EXPECT_EQ(Nearest("etcd", names), "");
  EXPECT_EQ(Nearest("", names), "");
  EXPECT_EQ(Nearest(std::string(100'000, 'l'), names), "");
  EXPECT_EQ(Nearest("listen", {}), "");
}

}  // namespace
}  // namespace penstock
