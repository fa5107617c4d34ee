// Runs a harness over kept inputs: NAME_replay FILE-OR-FOLDER... Exit status 2 if there is none,
// for a corpus that is not found must not pass as one without findings.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/harness.h"

namespace {

std::vector<std::filesystem::path> FilesOf(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) found.push_back(entry.path());
  }
  return found;
}

// The input itself, cut short everywhere, and with each byte changed in turn: damage that every
// compiler and sanitizer sees, not only libFuzzer's.
void RunDamaged(std::vector<uint8_t> input) {
  LLVMFuzzerTestOneInput(input.data(), input.size());
  constexpr size_t kMostDamaged = 512;
  for (size_t size = 0; size < input.size() && size < kMostDamaged; ++size) {
    const std::vector<uint8_t> cut(input.begin(), input.begin() + static_cast<ptrdiff_t>(size));
    LLVMFuzzerTestOneInput(cut.data(), cut.size());
  }
  for (size_t at = 0; at < input.size() && at < kMostDamaged; ++at) {
    for (const uint8_t flip : {0x01, 0x80, 0xff}) {
      input[at] ^= flip;
      LLVMFuzzerTestOneInput(input.data(), input.size());
      input[at] ^= flip;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  size_t inputs = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& path : FilesOf(argv[i])) {
      std::ifstream file(path, std::ios::binary);
      if (!file) {
        std::fprintf(stderr, "cannot read %s\n", path.c_str());
        return 2;
      }
      RunDamaged({std::istreambuf_iterator<char>(file), {}});
      ++inputs;
    }
  }
  std::printf("%zu inputs, each whole, cut and changed\n", inputs);
  return inputs == 0 ? 2 : 0;
}
