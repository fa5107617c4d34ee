// The page store against a real penstockd, in C++, so that the sanitizers see it too. What engines
// do with it is tested in tests/python/test_pages.py.

#include "connector/core/page_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "common/keys/chunk_key.h"
#include "tests/integration/daemon_process.h"

namespace penstock {
namespace {

constexpr uint64_t kPage = 1024;
constexpr uint32_t kLayers = 3;

Deadline Soon() { return Deadline::After(std::chrono::seconds(20)); }

// An engine's memory: `kLayers` layers of pages, one storage.
struct Pages {
  explicit Pages(uint32_t block_count)
      : memory(kLayers * block_count * kPage), blocks(block_count) {}

  std::vector<PageView> Views(uint32_t storage) const {
    std::vector<PageView> views;
    for (uint16_t layer = 0; layer < kLayers; ++layer) {
      views.push_back({storage, layer * blocks * kPage, kPage, kPage, layer});
    }
    return views;
  }
  std::byte* Page(uint32_t layer, BlockId block) {
    return memory.data() + (layer * blocks + static_cast<uint64_t>(block)) * kPage;
  }
  void Fill(unsigned seed) {
    std::mt19937 random(seed);
    for (std::byte& byte : memory) byte = std::byte(random());
  }
  bool SamePage(BlockId mine, Pages& other, BlockId theirs) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      if (!std::equal(Page(layer, mine), Page(layer, mine) + kPage, other.Page(layer, theirs))) {
        return false;
      }
    }
    return true;
  }

  std::vector<std::byte> memory;
  uint64_t blocks;
};

class PageStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start();
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    daemon_ = std::move(*daemon);
    ClientOptions options;
    options.address = daemon_->addresses().front().ToString();
    auto client = Client::Create(options);
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    client_ = std::move(*client);
    ASSERT_TRUE(client_->WaitConnected(Soon()));
    ns_ = Space("m");
  }

  Namespace Space(const std::string& model) {
    NamespaceDescriptor descriptor;
    descriptor.tenant = "default";
    descriptor.model = model;
    return client_->OpenNamespace(descriptor).value();
  }
  ChunkKey Key(int i) const { return NamedKey(ns_.fingerprint(), std::to_string(i)); }

  // A store over `pages` with one group of two blocks a chunk.
  std::unique_ptr<PageStore> Over(Pages& pages) {
    auto store = std::make_unique<PageStore>(client_, PageStoreOptions{.null_block = 0});
    EXPECT_EQ(store->RegisterStorage(pages.memory.data(), pages.memory.size()).value(), 0u);
    EXPECT_EQ(store->AddGroup(ns_, 2, pages.Views(0)).value(), 0u);
    return store;
  }

  static std::vector<Code> Codes(const OperationPtr& operation) {
    EXPECT_TRUE(operation->Wait(Soon()));
    std::vector<Code> codes;
    for (const ItemResult& item : operation->items()) codes.push_back(item.status.code());
    return codes;
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::shared_ptr<Client> client_;
  Namespace ns_;
};

TEST_F(PageStoreTest, ChunksComeBackIntoOtherBlocks) {
  Pages source(16), target(32);
  source.Fill(1);
  auto writer = Over(source);
  auto reader = Over(target);
  const std::vector<PageChunk> stored = {{0, Key(1), {3, 4}}, {0, Key(2), {9, 2}, Key(1), 256}};
  EXPECT_EQ(Codes(writer->Store(stored, Soon())), (std::vector{Code::kOk, Code::kOk}));
  const std::vector<PageChunk> loaded = {{0, Key(2), {30, 31}}, {0, Key(1), {7, kSkippedBlock}}};
  const OperationPtr load = reader->Load(loaded, 0, Soon());
  EXPECT_EQ(Codes(load), (std::vector{Code::kOk, Code::kOk}));
  EXPECT_TRUE(load->status().ok());
  EXPECT_EQ(load->items()[0].bytes, 2 * kLayers * kPage);
  EXPECT_TRUE(target.SamePage(30, source, 9));
  EXPECT_TRUE(target.SamePage(31, source, 2));
  EXPECT_TRUE(target.SamePage(7, source, 3));
}

TEST_F(PageStoreTest, ChunksThatCannotBeDoNotStopTheOthers) {
  Pages pages(16);
  pages.Fill(2);
  auto store = Over(pages);
  ASSERT_EQ(Codes(store->Store(std::vector<PageChunk>{{0, Key(1), {1, 2}}}, Soon())),
            std::vector{Code::kOk});
  const std::vector<PageChunk> chunks = {
      {1, Key(1), {1, 2}},                          // No such group.
      {0, Key(1), {3, 16}},                         // Beyond the storage.
      {0, Key(1), {0, 3}},                          // The null block.
      {0, Key(1), {3}},                             // Half a chunk.
      {0, Key(1), {kSkippedBlock, kSkippedBlock}},  // Nothing of it.
      {0, Key(9), {3, 4}},                          // Not stored.
      {0, Key(1), {5, 6}},
      {0, Key(1), {6, 7}},  // Block 6 is written by the one before.
      {0, Key(1), {8, 8}},  // And this one writes over itself.
  };
  const Code bad = Code::kInvalidArgument;
  EXPECT_EQ(Codes(store->Load(chunks, 0, Soon())),
            (std::vector{bad, bad, bad, bad, bad, Code::kMiss, Code::kOk, bad, bad}));
  EXPECT_TRUE(pages.SamePage(5, pages, 1));
  EXPECT_TRUE(store->Load({}, 0, Soon())->Done());
}

TEST_F(PageStoreTest, GroupsOfSeveralLayoutsLoadTogether) {
  Pages pages(16);
  pages.Fill(3);
  auto store = Over(pages);
  const Namespace other = Space("other");
  ASSERT_EQ(store->AddGroup(other, 1, std::vector<PageView>{{0, 0, kPage, kPage, 7}}).value(), 1u);
  const std::vector<PageChunk> chunks = {
      {0, Key(1), {1, 2}}, {1, Key(2), {3}}, {0, Key(3), {4, 5}}};
  EXPECT_EQ(Codes(store->Store(chunks, Soon())), std::vector(3, Code::kOk));
  const std::vector<PageChunk> again = {
      {1, Key(2), {13}}, {0, Key(3), {11, 12}}, {1, Key(9), {14}}, {0, Key(1), {9, 10}}};
  EXPECT_EQ(Codes(store->Load(again, 0, Soon())),
            (std::vector{Code::kOk, Code::kOk, Code::kMiss, Code::kOk}));
  EXPECT_TRUE(pages.SamePage(11, pages, 4));
  EXPECT_TRUE(pages.SamePage(10, pages, 2));
  EXPECT_TRUE(std::equal(pages.Page(0, 3), pages.Page(0, 4), pages.Page(0, 13)));
}

TEST_F(PageStoreTest, AChunkOfAnotherLayoutIsAMismatch) {
  Pages pages(16);
  auto store = Over(pages);
  ASSERT_EQ(Codes(store->Store(std::vector<PageChunk>{{0, Key(1), {1, 2}}}, Soon())),
            std::vector{Code::kOk});
  std::vector<PageView> views = pages.Views(0);
  std::swap(views[0], views[1]);  // The same bytes in another order.
  ASSERT_EQ(store->AddGroup(ns_, 2, views).value(), 1u);
  EXPECT_EQ(Codes(store->Load(std::vector<PageChunk>{{1, Key(1), {3, 4}}}, 0, Soon())),
            std::vector{Code::kFormatMismatch});
  // One that carries no tag, because a plain client stored it, must at least have the right length.
  std::vector<std::byte> plain(100);
  StoreItem item{.ns = ns_, .key = Key(2), .pieces = {{plain.data(), plain.size()}}};
  ASSERT_EQ(Codes(client_->Store({item}, false, Soon())), std::vector{Code::kOk});
  EXPECT_EQ(Codes(store->Load(std::vector<PageChunk>{{0, Key(2), {3, 4}}}, 0, Soon())),
            std::vector{Code::kFormatMismatch});
}

TEST_F(PageStoreTest, StoragesAreKnownOnceAndDoNotOverlap) {
  Pages pages(16);
  PageStore store(client_, {});
  const uint64_t size = pages.memory.size();
  EXPECT_EQ(store.RegisterStorage(pages.memory.data(), size).value(), 0u);
  EXPECT_EQ(store.RegisterStorage(pages.memory.data(), size).value(), 0u);
  EXPECT_EQ(store.RegisterStorage(pages.memory.data() + 1, 10).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(store.RegisterStorage(nullptr, 10).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(store.RegisterStorage(pages.memory.data(), 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(store.unregistered_storages(), 0u);
}

TEST_F(PageStoreTest, ClosingEndsWhatIsInFlightAndRefusesTheRest) {
  Pages pages(16);
  pages.Fill(4);
  auto store = Over(pages);
  daemon_->process().Signal(SIGSTOP);
  ASSERT_TRUE(daemon_->process().WaitStopped());
  const std::vector<PageChunk> chunks = {{0, Key(1), {1, 2}}, {0, Key(2), {3, 4}}};
  const OperationPtr saving = store->Store(chunks, Soon());
  const OperationPtr loading = store->Load(chunks, 0, Soon());
  std::thread other([&] { store->Close(); });
  store->Close();
  other.join();
  EXPECT_EQ(Codes(saving), std::vector(2, Code::kCancelled));
  EXPECT_EQ(Codes(loading), std::vector(2, Code::kCancelled));
  EXPECT_EQ(Codes(store->Store(chunks, Soon())), std::vector(2, Code::kDisconnected));
  EXPECT_EQ(Codes(store->Load(chunks, 0, Soon())), std::vector(2, Code::kDisconnected));
  EXPECT_EQ(store->RegisterStorage(&pages, 1).status().code(), Code::kDisconnected);
  EXPECT_EQ(store->AddGroup(ns_, 1, pages.Views(0)).status().code(), Code::kDisconnected);
  daemon_->process().Signal(SIGCONT);
}

TEST_F(PageStoreTest, AnOperationOutlivesItsStore) {
  Pages pages(16);
  auto store = Over(pages);
  const OperationPtr saving = store->Store(std::vector<PageChunk>{{0, Key(1), {1, 2}}}, Soon());
  store.reset();
  EXPECT_TRUE(saving->Done());
  const std::vector<Code> codes = Codes(saving);
  EXPECT_TRUE(codes == std::vector{Code::kOk} || codes == std::vector{Code::kCancelled});
}

TEST_F(PageStoreTest, ManyThreadsLoadAndStoreUntilItIsClosed) {
  Pages pages(64);
  pages.Fill(5);
  auto store = Over(pages);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const BlockId first = 1 + 15 * t;
      for (int i = 0;; ++i) {
        const std::vector<PageChunk> mine = {{0, Key(1000 * t + i), {first, first + 1}}};
        const std::vector<PageChunk> back = {{0, Key(1000 * t + i), {first + 2, first + 3}}};
        if (Codes(store->Store(mine, Soon())) != std::vector{Code::kOk}) return;
        OperationPtr dropped = store->Load(back, 0, Soon());
        if (i % 3 == 0) dropped->Cancel();
        dropped.reset();
        if (Codes(store->Load(back, 0, Soon())) != std::vector{Code::kOk}) return;
        EXPECT_TRUE(pages.SamePage(first, pages, first + 2));
      }
    });
  }
  EXPECT_TRUE(client_->Ping(Soon())->Wait(Soon()));
  store->Close();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace penstock
