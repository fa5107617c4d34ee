// What a store sends: the bytes as they were at the time of the call, or nothing that would pass.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "common/format/verify.h"
#include "tests/integration/client_puppet.h"
#include "tests/integration/client_values.h"

namespace penstock {
namespace {

constexpr size_t kBig = 4 << 20;  // Larger than what goes without a grant.

class ClientStore : public testing::Test {
 protected:
  ClientStore() : client_(puppet_.Connect()), ns_(*client_->OpenNamespace(TestDescriptor())) {}

  ChunkKey Key(const std::string& name) { return NamedKey(ns_.fingerprint(), name); }
  OperationPtr StoreOne(const ChunkKey& key, std::string& value, bool replace = false) {
    return client_->Store({ToStore(ns_, key, value)}, replace, Soon());
  }
  static Code Outcome(const OperationPtr& operation) {
    EXPECT_TRUE(operation->Wait(Soon()));
    EXPECT_EQ(operation->items().size(), 1u);
    return operation->items()[0].status.code();
  }
  void Answer(const Puppet::Message& m, std::vector<Code> codes) {
    puppet_.Reply(m, ItemStatuses{std::move(codes)});
  }
  // What a daemon finds when it checks what came before it commits.
  static Status Check(const StoreRequest& request, size_t item, const std::string& came) {
    const auto manifest = Manifest::Decode(request.items[item].manifest);
    if (!manifest.ok()) return manifest.status();
    const iovec piece{const_cast<char*>(came.data()), came.size()};
    return VerifySegments(request.items[item].key, *manifest, Selection::All(), {&piece, 1});
  }

  Puppet puppet_;
  std::unique_ptr<Client> client_;
  Namespace ns_;
};

TEST_F(ClientStore, SmallValuesGoAtOnceAndArriveWhole) {
  std::string value = Value(10'000, 1);
  const OperationPtr store = StoreOne(Key("small"), value);
  const auto m = puppet_.Next(MessageType::kStore);
  const auto request = StoreRequest::Decode(m.body);
  ASSERT_TRUE(request.ok());
  EXPECT_TRUE(request->eager);
  EXPECT_EQ(request->items[0].payload_bytes, value.size());
  EXPECT_TRUE(Check(*request, 0, puppet_.Received(m.id, 0, value.size())).ok());
  Answer(m, {Code::kOk});
  EXPECT_EQ(Outcome(store), Code::kOk);
  EXPECT_EQ(store->items()[0].bytes, value.size());
  EXPECT_EQ(client_->stats().stored_bytes, value.size());
}

TEST_F(ClientStore, BigValuesWaitForTheirGrantAndOnlyGrantedOnesAreSent) {
  std::string a = Value(kBig, 2), b = Value(kBig, 3), c = Value(kBig, 4);
  const OperationPtr store = client_->Store(
      {ToStore(ns_, Key("a"), a), ToStore(ns_, Key("b"), b), ToStore(ns_, Key("c"), c)}, false,
      Soon());
  const auto m = puppet_.Next(MessageType::kStore);
  const auto request = StoreRequest::Decode(m.body);
  ASSERT_TRUE(request.ok());
  EXPECT_FALSE(request->eager);
  puppet_.Grant(m, {Code::kOk, Code::kAlreadyExists, Code::kOk});
  EXPECT_TRUE(Check(*request, 0, puppet_.Received(m.id, 0, kBig)).ok());
  EXPECT_TRUE(Check(*request, 2, puppet_.Received(m.id, 2, kBig)).ok());
  EXPECT_EQ(puppet_.Received(m.id, 1, 0).size(), 0u);
  Answer(m, {Code::kOk, Code::kAlreadyExists, Code::kAllPinned});
  ASSERT_TRUE(store->Wait(Soon()));
  EXPECT_TRUE(store->status().ok());
  EXPECT_EQ(store->items()[0].status.code(), Code::kOk);
  EXPECT_EQ(store->items()[1].status.code(), Code::kAlreadyExists);
  EXPECT_EQ(store->items()[1].bytes, 0u);
  EXPECT_EQ(store->items()[2].status.code(), Code::kAllPinned);
  EXPECT_THAT(store->items()[2].status.message(), testing::HasSubstr("item 2"));
}

TEST_F(ClientStore, TellsParentTokensTagFlagsAndSegments) {
  std::string value = Value(1'000, 5);
  StoreItem item = ToStore(ns_, Key("layered"), value);
  item.parent = Key("parent");
  item.token_count = 77;
  item.tag = 99;
  item.manifest_flags = kManifestLossy;
  item.segments = {
      {.kind = SegmentKind::kK, .layer_count = 1, .logical_bytes = 600, .stored_bytes = 600},
      {.kind = SegmentKind::kV, .layer_count = 1, .logical_bytes = 400, .stored_bytes = 400}};
  const OperationPtr store = client_->Store({item}, true, Soon());
  const auto m = puppet_.Next(MessageType::kStore);
  const auto request = StoreRequest::Decode(m.body);
  ASSERT_TRUE(request.ok());
  EXPECT_TRUE(request->replace);
  EXPECT_EQ(request->items[0].parent, Key("parent"));
  const auto manifest = Manifest::Decode(request->items[0].manifest);
  ASSERT_TRUE(manifest.ok());
  EXPECT_EQ(manifest->token_count, 77u);
  EXPECT_EQ(manifest->tag, 99u);
  EXPECT_EQ(manifest->flags, kManifestLossy);
  ASSERT_EQ(manifest->segments.size(), 2u);
  EXPECT_EQ(manifest->segments[1].kind, SegmentKind::kV);
  EXPECT_EQ(manifest->segments[1].checksum,
            ChunkChecksum(item.key, AsBytes(std::string_view(value).substr(600))));
  Answer(m, {Code::kOk});
  EXPECT_EQ(Outcome(store), Code::kOk);
}

TEST_F(ClientStore, SegmentsThatDoNotFitTheBytesAreRefusedByThemselves) {
  std::string value = Value(1'000, 6);
  StoreItem less = ToStore(ns_, Key("less"), value), more = less, good = less;
  less.segments = {{.stored_bytes = 999}};
  more.segments = {{.stored_bytes = 1'000}, {.stored_bytes = UINT64_MAX}};
  const OperationPtr store = client_->Store({less, more, good}, false, Soon());
  const auto m = puppet_.Next(MessageType::kStore);
  EXPECT_EQ(StoreRequest::Decode(m.body)->items.size(), 1u);
  Answer(m, {Code::kOk});
  ASSERT_TRUE(store->Wait(Soon()));
  EXPECT_EQ(store->items()[0].status.code(), Code::kInvalidArgument);
  EXPECT_EQ(store->items()[1].status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(store->items()[2].status.ok());
}

// The caller broke the rule and reused its memory: what arrives does not pass the daemon's check.
TEST_F(ClientStore, MemoryReusedBeforeItIsSentDoesNotPassAsTheOldValue) {
  std::string memory = Value(kBig, 7);
  const OperationPtr store = StoreOne(Key("reused"), memory);
  const auto m = puppet_.Next(MessageType::kStore);
  const std::string other = Value(kBig, 8);
  std::copy(other.begin(), other.end(), memory.begin());
  puppet_.Grant(m, {Code::kOk});
  const std::string came = puppet_.Received(m.id, 0, kBig);
  EXPECT_EQ(Check(*StoreRequest::Decode(m.body), 0, came).code(), Code::kChecksumMismatch);
  Answer(m, {Code::kChecksumMismatch});
  EXPECT_EQ(Outcome(store), Code::kChecksumMismatch);
}

TEST_F(ClientStore, AfterCancelNothingReadsTheMemory) {
  std::string memory = Value(kBig, 9);
  const std::string old = memory;
  const OperationPtr store = StoreOne(Key("cancelled"), memory);
  const auto m = puppet_.Next(MessageType::kStore);
  puppet_.Grant(m, {Code::kOk});
  store->Cancel();
  ASSERT_TRUE(store->Done());
  EXPECT_EQ(store->items()[0].status.code(), Code::kCancelled);
  std::fill(memory.begin(), memory.end(), 'X');
  puppet_.Next(MessageType::kCancel);
  Answer(m, {Code::kCancelled});
  // Another store on the same session: what was on the wire before is through when it is answered.
  std::string next = Value(10, 10);
  const OperationPtr after = StoreOne(Key("next"), next);
  const auto n = puppet_.Next(MessageType::kStore);
  puppet_.Received(n.id, 0, next.size());
  Answer(n, {Code::kOk});
  EXPECT_EQ(Outcome(after), Code::kOk);
  const std::string came = puppet_.Received(m.id, 0, 0);
  EXPECT_EQ(came.find("XXXXXXXXXXXXXXXX"), std::string::npos);
}

TEST_F(ClientStore, MemoryUnmappedUnderAStoreIsAnErrorAndNoCrash) {
  void* memory = mmap(nullptr, kBig, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  StoreItem item;
  item.ns = ns_;
  item.key = Key("unmapped");
  item.pieces = {{memory, kBig}};
  const OperationPtr store = client_->Store({item}, false, Soon());
  const auto m = puppet_.Next(MessageType::kStore);
  ASSERT_EQ(munmap(memory, kBig), 0);
  puppet_.Grant(m, {Code::kOk});
  EXPECT_EQ(puppet_.ReceivedFailure(m.id, 0), Code::kBadBuffer);
  Answer(m, {Code::kCancelled});
  EXPECT_EQ(Outcome(store), Code::kBadBuffer);
}

TEST_F(ClientStore, BadMemoryIsNamedBeforeAnyIo) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* pages = static_cast<std::byte*>(
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(mprotect(pages + page, page, PROT_NONE), 0);
  std::vector<StoreItem> items(4);
  for (StoreItem& item : items) item.ns = ns_;
  items[0].pieces = {{nullptr, 1}};
  items[1].pieces = {{pages, page + 1}};
  items[2].pieces = {{pages + page, 1}};
  items[3].ns = Namespace();
  const OperationPtr store = client_->Store(items, false, Soon());
  ASSERT_TRUE(store->Wait(Soon()));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(store->items()[i].status.code(), Code::kBadBuffer) << i;
  }
  EXPECT_EQ(store->items()[3].status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(store->status().ok());
  // Read-only memory is a fine source.
  ASSERT_EQ(mprotect(pages, page, PROT_READ), 0);
  items.resize(1);
  items[0].pieces = {{pages, page}};
  const OperationPtr good = client_->Store(items, false, Soon());
  const auto m = puppet_.Next(MessageType::kStore);
  Answer(m, {Code::kOk});
  EXPECT_EQ(Outcome(good), Code::kOk);
  munmap(pages, 2 * page);
}

TEST_F(ClientStore, AGrantThatDoesNotFitEndsTheStore) {
  std::string value = Value(kBig, 11);
  const OperationPtr store = StoreOne(Key("odd"), value);
  const auto m = puppet_.Next(MessageType::kStore);
  puppet_.Grant(m, {Code::kOk, Code::kOk});
  EXPECT_EQ(Outcome(store), Code::kCorruptMessage);
}

TEST_F(ClientStore, BigBatchesAreSplitByBytesAndByItems) {
  constexpr size_t kItems = 3'000;
  std::vector<std::string> values;
  std::vector<StoreItem> items;
  for (size_t i = 0; i < kItems; ++i) {
    values.push_back(Value(i % 500 == 0 ? 1 << 20 : 8, static_cast<uint32_t>(i)));
  }
  for (size_t i = 0; i < kItems; ++i) {
    items.push_back(ToStore(ns_, Key(std::to_string(i)), values[i]));
  }
  const OperationPtr store = client_->Store(items, false, Soon());
  size_t answered = 0;
  while (answered < kItems) {
    const auto m = puppet_.Next(MessageType::kStore);
    const auto request = StoreRequest::Decode(m.body);
    ASSERT_TRUE(request.ok());
    std::vector<Code> codes;
    for (const auto& item : request->items) {
      EXPECT_EQ(item.key, items[answered].key);
      codes.push_back(answered % 3 == 0 ? Code::kAlreadyExists : Code::kOk);
      ++answered;
    }
    if (!request->eager) puppet_.Grant(m, std::vector<Code>(codes.size(), Code::kOk));
    for (size_t i = 0; i < codes.size(); i += 100) {
      const size_t bytes = request->items[i].payload_bytes;
      EXPECT_TRUE(Check(*request, i, puppet_.Received(m.id, static_cast<uint32_t>(i), bytes)).ok());
    }
    Answer(m, codes);
  }
  ASSERT_TRUE(store->Wait(Soon()));
  for (size_t i = 0; i < kItems; ++i) {
    ASSERT_EQ(store->items()[i].status.code(), i % 3 == 0 ? Code::kAlreadyExists : Code::kOk);
  }
}

TEST_F(ClientStore, MoreNamespacesThanOneRequestNamesAreSplit) {
  std::vector<std::string> values(kMaxNamespaces + 10);
  std::vector<StoreItem> items;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = Value(10, static_cast<uint32_t>(i));
    const Namespace ns = *client_->OpenNamespace(TestDescriptor("model-" + std::to_string(i)));
    items.push_back(ToStore(ns, NamedKey(ns.fingerprint(), "x"), values[i]));
  }
  const OperationPtr store = client_->Store(items, false, Soon());
  for (size_t answered = 0; answered < items.size();) {
    const auto m = puppet_.Next(MessageType::kStore);
    const auto request = StoreRequest::Decode(m.body);
    ASSERT_TRUE(request.ok());
    for (const auto& item : request->items) {
      EXPECT_EQ(request->namespaces[item.ns], items[answered++].ns.fingerprint());
    }
    Answer(m, std::vector<Code>(request->items.size(), Code::kOk));
  }
  EXPECT_TRUE(store->Wait(Soon()));
}

}  // namespace
}  // namespace penstock
