// Every way to read a chunk, against every fault: the same answer in every cell. A check that is
// made on one path and forgotten on its sibling shows as the odd cell of a row.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "client/c/penstock.h"
#include "common/format/checksum.h"
#include "common/format/selection.h"
#include "tests/integration/client_values.h"
#include "tests/integration/daemon_fixture.h"
#include "tests/integration/flipping_proxy.h"

namespace penstock {
namespace {

constexpr size_t kSegment = 20'000, kBytes = 3 * kSegment;
// Where faults strike: in the last segment, so that a selection of it meets them too.
constexpr size_t kStruck = kBytes - kSegment / 2;
constexpr char kMarker[] = "<marker:0123456789abcd>";

enum class Fault {
  kNone,
  kFlippedBit,      // In the daemon's memory, after the commit.
  kCutShort,        // The end never got there, and nobody checked.
  kOfAnotherKey,    // Bytes and checksums of another chunk under this one's key.
  kOtherNamespace,  // The right key, asked for in another namespace.
  kOtherTag,        // Stored for readers of another layout.
  kDropped,
  kNeverThere,
  kNoRoom,     // One byte too little.
  kBadMemory,  // A destination that cannot be written.
};

struct Row {
  Fault fault;
  const char* name;
  Code expected;
};
constexpr Row kRows[] = {
    {Fault::kNone, "none", Code::kOk},
    {Fault::kFlippedBit, "flipped bit", Code::kChecksumMismatch},
    {Fault::kCutShort, "cut short", Code::kChecksumMismatch},
    {Fault::kOfAnotherKey, "of another key", Code::kChecksumMismatch},
    {Fault::kOtherNamespace, "other namespace", Code::kFormatMismatch},
    {Fault::kOtherTag, "other tag", Code::kFormatMismatch},
    {Fault::kDropped, "dropped", Code::kMiss},
    {Fault::kNeverThere, "never there", Code::kMiss},
    {Fault::kNoRoom, "no room", Code::kBufferTooSmall},
    {Fault::kBadMemory, "bad memory", Code::kBadBuffer},
};

// What one path was asked, and what came of it.
struct Question {
  bool other_namespace = false;
  ChunkKey key;
  size_t cut_room = 0;  // So many bytes less than are needed.
  bool bad_memory = false;
  size_t needed = kBytes;  // Without the cut.
  iovec memory{};          // Set by the table.
};

class ReadPaths : public DaemonTest {
 protected:
  struct Path {
    const char* name;
    bool selects;   // Reads the last segment alone.
    bool of_the_c;  // Through the C interface.
    std::function<Code(const Question&)> ask;
  };

  void Begin(const std::string& wire, const std::string& listen) {
    DaemonOptions options = SmallDaemon();
    options.store.verify_on_commit = false;  // So that wrong bytes get in at all.
    options.listen = {{Address::Parse(listen).value()}};
    Start(std::move(options));
    Connect(wire, address().ToString());
  }
  void Connect(const std::string& wire, const std::string& to) {
    client_.reset();
    ClientOptions options;
    options.address = to;
    options.wire = wire;
    client_ = std::move(Client::Create(options)).value();
    ASSERT_TRUE(client_->WaitConnected(Soon())) << client_->stats().last_error;
    ns_ = *client_->OpenNamespace(TestDescriptor());
    other_ = *client_->OpenNamespace(TestDescriptor("another-model"));
    ASSERT_TRUE(client_->Ping(Soon())->Wait(Soon()));  // They are open there too.
    EndC();
    penstock_client_options c_options;
    PENSTOCK_INIT(c_options);
    c_options.address = to.c_str();
    c_options.wire = wire.c_str();
    ASSERT_EQ(penstock_client_create(&c_options, &c_), 0) << penstock_last_error();
    ASSERT_EQ(penstock_client_wait_connected(c_, 30000), 0) << penstock_last_error();
    c_ns_ = OpenC(TestDescriptor());
    c_other_ = OpenC(TestDescriptor("another-model"));
    ASSERT_EQ(penstock_ping(c_, 30000), 0);
  }
  void TearDown() override {
    EndC();
    client_.reset();
  }
  void EndC() {
    penstock_namespace_free(std::exchange(c_ns_, nullptr));
    penstock_namespace_free(std::exchange(c_other_, nullptr));
    penstock_client_free(std::exchange(c_, nullptr));
  }
  penstock_namespace* OpenC(const NamespaceDescriptor& from) {
    penstock_descriptor d;
    PENSTOCK_INIT(d);
    d.tenant = from.tenant.c_str();
    d.model = from.model.c_str();
    d.kv_dtype = from.kv_dtype.c_str();
    d.layout = from.layout.c_str();
    d.block_tokens = from.block_tokens;
    d.chunk_tokens = from.chunk_tokens;
    penstock_namespace* ns = nullptr;
    EXPECT_EQ(penstock_namespace_open(c_, &d, &ns), 0) << penstock_last_error();
    return ns;
  }

  ChunkKey Key(const std::string& name) const { return NamedKey(ns_.fingerprint(), name); }
  static std::string Bytes(const ChunkKey& key) {
    std::string bytes = Value(kBytes, static_cast<uint32_t>(key.Word()));
    bytes.replace(kStruck - sizeof(kMarker), sizeof(kMarker) - 1, kMarker);
    return bytes;
  }

  // Commits `bytes` under `key` with the checksums of `true_bytes` as those of `true_key`.
  void Commit(const ChunkKey& key, const std::string& bytes, const ChunkKey& true_key,
              const std::string& true_bytes, uint64_t tag = 0) {
    NewChunk chunk;
    chunk.key = key;
    ChunkStore& store = daemon_->serving().store;
    chunk.ns = store.FindNamespace(ns_.fingerprint());
    chunk.manifest.tag = tag;
    for (uint16_t layer = 0; layer < 3; ++layer) {
      const auto part = std::string_view(true_bytes).substr(layer * kSegment, kSegment);
      chunk.manifest.segments.push_back({.kind = SegmentKind::kKv,
                                         .layer_first = layer,
                                         .layer_count = 1,
                                         .logical_bytes = kSegment,
                                         .stored_bytes = kSegment,
                                         .checksum = ChunkChecksum(true_key, AsBytes(part))});
    }
    auto pending = store.Begin(std::move(chunk));
    ASSERT_TRUE(pending.ok()) << pending.status().ToString();
    size_t at = 0;
    for (const iovec& piece : pending->pieces()) {
      std::memcpy(piece.iov_base, bytes.data() + at, piece.iov_len);
      at += piece.iov_len;
    }
    ASSERT_TRUE(store.Commit(std::move(*pending)).ok());
  }
  void CommitGood(const ChunkKey& key) { Commit(key, Bytes(key), key, Bytes(key)); }

  void Arrange(Fault fault, const ChunkKey& key) {
    const std::string good = Bytes(key);
    switch (fault) {
      case Fault::kNeverThere:
        return;
      case Fault::kCutShort: {
        std::string cut = good;
        std::fill(cut.begin() + kStruck, cut.end(), '\0');
        return Commit(key, cut, key, good);
      }
      case Fault::kOfAnotherKey: {
        const ChunkKey another = Key("the key that the bytes are of");
        return Commit(key, Bytes(another), another, Bytes(another));
      }
      case Fault::kOtherTag:
        return Commit(key, good, key, good, /*tag=*/7);
      default:
        CommitGood(key);
    }
    ChunkStore& store = daemon_->serving().store;
    const NamespaceId ns = store.FindNamespace(ns_.fingerprint());
    if (fault == Fault::kDropped) {
      ASSERT_TRUE(store.Drop(key, ns).ok());
    }
    if (fault == Fault::kFlippedBit) {
      const auto found = store.Find(key, {.ns = ns});
      ASSERT_TRUE(found.ok());
      size_t at = kStruck;
      for (const iovec& piece : (*found).pieces()) {
        if (at < piece.iov_len) {
          static_cast<char*>(piece.iov_base)[at] ^= 1;
          return;
        }
        at -= piece.iov_len;
      }
    }
  }

  static std::vector<std::byte> LastSegment() { return Selection::Layers(2, 1).Encode(); }

  Code AskCpp(const Question& q, std::vector<iovec> pieces, const FetchOptions& options = {}) {
    const auto fetch = client_->Fetch(
        {{q.other_namespace ? other_ : ns_, q.key, std::move(pieces)}}, options, Soon());
    EXPECT_TRUE(fetch->Wait(Soon(60)));
    return fetch->items()[0].status.code();
  }
  static std::vector<iovec> Cut(const iovec& memory) {
    std::vector<iovec> pieces;
    char* const at = static_cast<char*>(memory.iov_base);
    for (size_t from = 0, length = 1; from < memory.iov_len; from += length, length = length * 3) {
      pieces.push_back({at + from, std::min(length, memory.iov_len - from)});
    }
    return pieces;
  }
  Code AskBatch(const Question& q) {
    Landing before(kBytes), behind(kBytes);
    const auto fetch = client_->Fetch({ToFetch(ns_, good_[0], before),
                                       {q.other_namespace ? other_ : ns_, q.key, {q.memory}},
                                       ToFetch(ns_, good_[1], behind)},
                                      {}, Soon());
    EXPECT_TRUE(fetch->Wait(Soon(60)));
    EXPECT_EQ(fetch->items()[0].status.code(), Code::kOk);
    EXPECT_EQ(fetch->items()[2].status.code(), Code::kOk);
    EXPECT_TRUE(before.view() == Bytes(good_[0]) && behind.view() == Bytes(good_[1]));
    return fetch->items()[1].status.code();
  }
  const penstock_namespace* SpaceC(const Question& q) const {
    return q.other_namespace ? c_other_ : c_ns_;
  }
  static penstock_key KeyC(const ChunkKey& key) {
    penstock_key out;
    std::memcpy(out.bytes, key.bytes.data(), sizeof(out.bytes));
    return out;
  }
  Code AskC(const Question& q, bool select) {
    penstock_fetch_item item = {SpaceC(q), KeyC(q.key), &q.memory, 1};
    penstock_fetch_options options;
    PENSTOCK_INIT(options);
    const auto selection = LastSegment();
    if (select) {
      options.selection = selection.data();
      options.selection_bytes = selection.size();
    }
    penstock_code code = -1;
    penstock_fetch(c_, &item, 1, sizeof(item), &options, 30000, &code);
    return static_cast<Code>(code);
  }
  Code AskBatchC(const Question& q) {
    Landing before(kBytes), behind(kBytes);
    const iovec first = before.piece(), last = behind.piece();
    const penstock_fetch_item items[] = {{c_ns_, KeyC(good_[0]), &first, 1},
                                         {SpaceC(q), KeyC(q.key), &q.memory, 1},
                                         {c_ns_, KeyC(good_[1]), &last, 1}};
    penstock_code codes[3] = {-1, -1, -1};
    penstock_fetch(c_, items, 3, sizeof(items[0]), nullptr, 30000, codes);
    EXPECT_EQ(codes[0], PENSTOCK_OK);
    EXPECT_EQ(codes[2], PENSTOCK_OK);
    EXPECT_TRUE(before.view() == Bytes(good_[0]) && behind.view() == Bytes(good_[1]));
    return static_cast<Code>(codes[1]);
  }
  Code AskGetC(const Question& q) {
    const penstock_key key = KeyC(q.key);
    size_t bytes = 0;
    return static_cast<Code>(
        penstock_get(c_, SpaceC(q), &key, q.memory.iov_base, q.memory.iov_len, 30000, &bytes));
  }
  std::vector<Path> Paths() {
    return {
        {"single", false, false, [this](const auto& q) { return AskCpp(q, {q.memory}); }},
        {"scattered", false, false, [this](const auto& q) { return AskCpp(q, Cut(q.memory)); }},
        {"batch", false, false, [this](const auto& q) { return AskBatch(q); }},
        {"selection", true, false,
         [this](const auto& q) { return AskCpp(q, {q.memory}, {.selection = LastSegment()}); }},
        {"C get", false, true, [this](const auto& q) { return AskGetC(q); }},
        {"C fetch", false, true, [this](const auto& q) { return AskC(q, false); }},
        {"C batch", false, true, [this](const auto& q) { return AskBatchC(q); }},
        {"C selection", true, true, [this](const auto& q) { return AskC(q, true); }},
    };
  }

  // One cell. What is delivered must be right, what is not must leave the neighbourhood alone.
  void Ask(const Path& path, const Row& row, const ChunkKey& key) {
    const size_t needed = path.selects ? kSegment : kBytes;
    const size_t room = row.fault == Fault::kNoRoom ? needed - 1 : needed;
    Landing landing(room);
    Question question{.other_namespace = row.fault == Fault::kOtherNamespace, .key = key};
    question.memory = landing.piece();
    void* unwritable = MAP_FAILED;
    if (row.fault == Fault::kBadMemory) {
      unwritable = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(unwritable, MAP_FAILED);
      question.memory.iov_base = unwritable;
    }
    EXPECT_EQ(path.ask(question), row.expected) << path.name << " / " << row.name;
    EXPECT_TRUE(landing.GuardsIntact()) << path.name << " / " << row.name;
    if (row.expected == Code::kOk) {
      EXPECT_TRUE(landing.view() == Bytes(key).substr(kBytes - needed)) << path.name;
    } else if (row.expected != Code::kChecksumMismatch) {
      EXPECT_TRUE(landing.Untouched()) << path.name << " / " << row.name;
    }
    if (unwritable != MAP_FAILED) munmap(unwritable, kBytes);
  }
  // Who saw the mismatch told the daemon, which looked, dropped the chunk, and takes it anew.
  void ExpectRepaired(const ChunkKey& key, uint64_t damaged) {
    EXPECT_TRUE(Eventually([&] {
      return daemon_->serving().store.Stats().damaged_chunks == damaged;
    })) << key.ToShortHex();
    std::string bytes = Bytes(key);
    const auto store = client_->Store({ToStore(ns_, key, bytes)}, false, Soon());
    EXPECT_TRUE(store->Wait(Soon()));
    EXPECT_EQ(store->items()[0].status.code(), Code::kOk);
    Landing landing(kBytes);
    EXPECT_EQ(AskCpp({.key = key}, {landing.piece()}), Code::kOk);
    EXPECT_TRUE(landing.view() == bytes);
  }
  void FillTable() {
    for (const ChunkKey& key : good_) CommitGood(key);
    uint64_t mismatches = 0;
    uint64_t damaged = 0;
    for (const Row& row : kRows) {
      for (const Path& path : Paths()) {
        // A chunk of its own for each: what was found to be damaged is not found again.
        const ChunkKey key = Key(std::string(row.name) + " / " + path.name);
        Arrange(row.fault, key);
        Ask(path, row, key);
        if (row.expected != Code::kChecksumMismatch) continue;
        if (!path.of_the_c) ++mismatches;
        ++damaged;
        ExpectRepaired(key, damaged);
      }
    }
    EXPECT_EQ(client_->stats().checksum_failures, mismatches);
    EXPECT_EQ(client_->stats().in_flight, 0u);
    ExpectIdle();
  }

  std::unique_ptr<Client> client_;
  Namespace ns_, other_;
  penstock_client* c_ = nullptr;
  penstock_namespace *c_ns_ = nullptr, *c_other_ = nullptr;
  const std::vector<ChunkKey> good_ = {
      NamedKey(TestDescriptor().ComputeFingerprint(), "good neighbour"),
      NamedKey(TestDescriptor().ComputeFingerprint(), "another good neighbour")};
};

TEST_F(ReadPaths, EveryFaultHasOneAnswerOnTcp) {
  Begin("tcp", "tcp://127.0.0.1:0");
  FillTable();
}
TEST_F(ReadPaths, EveryFaultHasOneAnswerOnAUnixSocket) {
  const TempDir directory;
  Begin("tcp", "unix://" + directory.path() + "/socket");
  FillTable();
  TearDown();
  daemon_.reset();
}
// Bits that change on the way: a mismatch on every path, and right again once the way is.
TEST_F(ReadPaths, ABitFlippedOnTheWayPassesOnNoPath) {
  Begin("tcp", "tcp://127.0.0.1:0");
  FlippingProxy proxy(address(), kMarker);
  Connect("tcp", proxy.address().ToString());
  for (const ChunkKey& key : good_) CommitGood(key);
  const ChunkKey key = good_[0];
  const Row flipped{Fault::kNone, "on the way", Code::kChecksumMismatch};
  for (const Path& path : Paths()) {
    if (std::string_view(path.name).find("batch") != std::string_view::npos) continue;
    proxy.Flip(true);
    Ask(path, flipped, key);
    proxy.Flip(false);
    Ask(path, kRows[0], key);
  }
  EXPECT_GE(proxy.flipped(), 6);
  // The daemon's own copy was right all the time: it looked, and kept it.
  ASSERT_TRUE(client_->Ping(Soon())->Wait(Soon()));
  ExpectIdle();
  EXPECT_EQ(daemon_->serving().store.Stats().damaged_chunks, 0u);
  TearDown();
}

// The same on the way in, where the daemon is the one who checks.
TEST_F(ReadPaths, ABitFlippedOnTheWayInIsNotCommitted) {
  Start();
  FlippingProxy proxy(address(), kMarker);
  Connect("tcp", proxy.address().ToString());
  const ChunkKey key = Key("stored through the proxy");
  std::string bytes = Bytes(key);
  const auto put = [&] {
    const auto store = client_->Store({ToStore(ns_, key, bytes)}, false, Soon());
    EXPECT_TRUE(store->Wait(Soon(60)));
    return store->items()[0].status.code();
  };
  proxy.Flip(true);
  EXPECT_EQ(put(), Code::kChecksumMismatch);
  const Row gone{Fault::kNone, "never committed", Code::kMiss};
  for (const Path& path : Paths()) {
    if (std::string_view(path.name).find("batch") == std::string_view::npos) Ask(path, gone, key);
  }
  EXPECT_EQ(Metric("penstock_store_items_total{outcome=\"failed\",reason=\"CHECKSUM_MISMATCH\"}"),
            1);
  proxy.Flip(false);
  EXPECT_EQ(put(), Code::kOk);
  const auto match = client_->Match({{ns_, {key}}}, {}, Soon());
  ASSERT_TRUE(match->Wait(Soon()));
  EXPECT_EQ(match->match().chunks, 1u);
  TearDown();
}

}  // namespace
}  // namespace penstock
