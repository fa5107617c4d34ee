// How long it takes to say where the pages of a load lie: time that the engine's step may wait for.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "connector/core/page_layout.h"

namespace penstock {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint32_t kBlocks = 4096;
constexpr uint32_t kBlocksPerChunk = 16;  // 256 tokens of an engine with blocks of 16.

PageLayout MakeLayout(std::vector<std::byte>& storage, uint16_t layers) {
  storage.resize(uint64_t{layers} * kBlocks * kPageBytes);
  std::vector<PageView> views;
  for (uint16_t layer = 0; layer < layers; ++layer) {
    views.push_back({0, uint64_t{layer} * kBlocks * kPageBytes, kPageBytes, kPageBytes, layer});
  }
  const std::vector<StorageRange> storages = {{storage.data(), storage.size()}};
  return PageLayout::Make(storages, kBlocksPerChunk, views).value();
}

// Chunks of a long prompt in blocks that lie in no order (the worst case: nothing merges) or one
// after the other (everything within a layer does).
void BM_AppendPieces(benchmark::State& state) {
  std::vector<std::byte> storage;
  const PageLayout layout = MakeLayout(storage, static_cast<uint16_t>(state.range(0)));
  std::vector<BlockId> blocks(kBlocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  if (state.range(1) != 0) std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  size_t pages = 0;
  std::vector<iovec> pieces;
  for (auto _ : state) {
    for (size_t first = 0; first < blocks.size(); first += kBlocksPerChunk) {
      pieces.clear();
      layout.AppendPieces(std::span(blocks).subspan(first, kBlocksPerChunk), nullptr, pieces);
      benchmark::DoNotOptimize(pieces.data());
      pages += kBlocksPerChunk * static_cast<size_t>(state.range(0));
    }
  }
  state.counters["pages"] =
      benchmark::Counter(static_cast<double>(pages), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_AppendPieces)->ArgNames({"layers", "shuffled"})->ArgsProduct({{4, 32}, {0, 1}});

}  // namespace
}  // namespace penstock

BENCHMARK_MAIN();
