// The client and the real daemon, in one process: what applications see.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "common/format/selection.h"
#include "tests/integration/client_values.h"
#include "tests/integration/daemon_fixture.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ClientDaemon : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonOptions options = SmallDaemon();
    options.metrics = false;  // Its HTTP server takes two seconds to stop.
    Start(std::move(options));
    client_ = Connect();
    ns_ = *client_->OpenNamespace(TestDescriptor());
  }
  void TearDown() override { client_.reset(); }

  std::unique_ptr<Client> Connect(const std::function<void(ClientOptions&)>& edit = {}) {
    ClientOptions options;
    options.address = address().ToString();
    options.wire = "tcp";
    if (edit) edit(options);
    auto client = std::move(Client::Create(options)).value();
    EXPECT_TRUE(client->WaitConnected(Soon())) << client->stats().last_error;
    return client;
  }
  ChunkKey Key(const std::string& name) const { return NamedKey(ns_.fingerprint(), name); }

  static Status Outcome(const OperationPtr& operation) {
    EXPECT_TRUE(operation->Wait(Soon()));
    if (!operation->status().ok() || operation->items().empty()) return operation->status();
    return operation->items()[0].status;
  }
  Status Put(const std::string& name, std::string value, bool replace = false) {
    return Outcome(client_->Store({ToStore(ns_, Key(name), value)}, replace, Soon()));
  }
  // The value, or the name of the code.
  std::string Get(const std::string& name, size_t room = 8 << 20) {
    std::string value(room, Landing::kPoison);
    const auto fetch = client_->Fetch({{ns_, Key(name), {Piece(value)}}}, {}, Soon());
    const Status status = Outcome(fetch);
    if (!status.ok()) return std::string(CodeName(status.code()));
    value.resize(fetch->items()[0].bytes);
    return value;
  }

  std::unique_ptr<Client> client_;
  Namespace ns_;
};

TEST_F(ClientDaemon, ValuesOfEverySizeComeBackAsTheyWere) {
  for (const size_t bytes : {1, 63, 64, 4095, 4096, 65'535, 65'536, 65'537, 1'000'000, 5'000'000}) {
    const std::string value = Value(bytes, static_cast<uint32_t>(bytes));
    const std::string name = std::to_string(bytes);
    ASSERT_TRUE(Put(name, value).ok()) << bytes;
    ASSERT_EQ(Get(name) == value, true) << bytes;
  }
}

TEST_F(ClientDaemon, AFullTableOfNamespacesIsSaidAndEndsWhenSomebodyLetsGo) {
  client_.reset();
  DaemonOptions options = SmallDaemon();
  options.store.max_namespaces = 4;  // One of them is the daemon's own.
  Start(std::move(options));
  client_ = Connect();
  ns_ = *client_->OpenNamespace(TestDescriptor());
  ASSERT_TRUE(Put("kept", "value").ok());
  // Many more than there is room for, one after the other.
  for (int i = 0; i < 50; ++i) {
    ns_ = *client_->OpenNamespace(TestDescriptor("weights-" + std::to_string(i)));
    ASSERT_EQ(Put("k", "value").code(), Code::kOk) << i;
    ASSERT_TRUE(Outcome(client_->Drop(ns_, {Key("k")}, Soon())).ok());
  }
  std::vector<Namespace> held;
  for (int i = 0; i < 4; ++i) {
    held.push_back(*client_->OpenNamespace(TestDescriptor("held-" + std::to_string(i))));
  }
  ns_ = held.back();
  EXPECT_EQ(Put("k", "value").code(), Code::kResourceExhausted);
  EXPECT_EQ(Get("k"), "RESOURCE_EXHAUSTED");
  const auto match = client_->Match({{.ns = ns_, .keys = {Key("k")}}}, {}, Soon());
  EXPECT_EQ(Outcome(match).code(), Code::kResourceExhausted);
  held.erase(held.begin(), held.begin() + 2);
  EXPECT_TRUE(Eventually([&] { return Put("k", "value").ok(); }));
  // What has chunks keeps its place, open or not.
  ns_ = *client_->OpenNamespace(TestDescriptor());
  EXPECT_EQ(Get("kept"), "value");
}

TEST_F(ClientDaemon, TheFirstCommitWinsUnlessReplaceIsAsked) {
  const std::string one = Value(50'000, 1), two = Value(50'000, 2), longer = Value(90'000, 3),
                    shorter = Value(10'000, 4);
  EXPECT_EQ(Put("k", one).code(), Code::kOk);
  EXPECT_EQ(Put("k", two).code(), Code::kAlreadyExists);
  EXPECT_EQ(Get("k"), one);
  EXPECT_EQ(Put("k", longer).code(), Code::kAlreadyExists);
  EXPECT_EQ(Get("k"), one);
  EXPECT_EQ(Put("k", two, true).code(), Code::kOk);
  EXPECT_EQ(Get("k"), two);
  EXPECT_EQ(Put("k", longer, true).code(), Code::kOk);
  EXPECT_EQ(Get("k"), longer);
  EXPECT_EQ(Put("k", shorter, true).code(), Code::kOk);
  EXPECT_EQ(Get("k"), shorter);
}

TEST_F(ClientDaemon, ReadersOfAReplacedValueGetAWholeOne) {
  constexpr size_t kBytes = 3'000'000;
  ASSERT_TRUE(Put("k", Value(kBytes, 0)).ok());
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (uint32_t version = 1; !stop; ++version) {
      EXPECT_TRUE(Put("k", Value(kBytes, version % 8), true).ok());
    }
  });
  std::vector<std::string> versions;
  for (uint32_t version = 0; version < 8; ++version) versions.push_back(Value(kBytes, version));
  for (int i = 0; i < 40; ++i) {
    const std::string got = Get("k");
    EXPECT_TRUE(std::find(versions.begin(), versions.end(), got) != versions.end()) << i;
  }
  stop = true;
  writer.join();
}

TEST_F(ClientDaemon, AbsentDroppedTooSmallAndEmptyAreDifferentThings) {
  EXPECT_EQ(Get("absent"), "MISS");
  ASSERT_TRUE(Put("dropped", "x").ok());
  EXPECT_TRUE(Outcome(client_->Drop(ns_, {Key("dropped")}, Soon())).ok());
  EXPECT_EQ(Get("dropped"), "MISS");
  EXPECT_EQ(Outcome(client_->Drop(ns_, {Key("dropped")}, Soon())).code(), Code::kMiss);
  ASSERT_TRUE(Put("large", Value(1'000, 1)).ok());
  std::string small(10, 'p');
  const auto fetch = client_->Fetch({{ns_, Key("large"), {Piece(small)}}}, {}, Soon());
  EXPECT_EQ(Outcome(fetch).code(), Code::kBufferTooSmall);
  EXPECT_EQ(fetch->items()[0].bytes, 1'000u);
  EXPECT_EQ(small, std::string(10, 'p'));
  // An empty value is either refused or present and empty.
  const Status empty = Put("empty", "");
  if (empty.ok()) {
    EXPECT_EQ(Get("empty"), "");
  } else {
    EXPECT_EQ(empty.code(), Code::kInvalidArgument);
    EXPECT_EQ(Get("empty"), "MISS");
  }
}

TEST_F(ClientDaemon, MatchFindsTheLongestPrefixAndTheReservationHolds) {
  std::vector<ChunkKey> keys;
  for (int i = 0; i < 5; ++i) {
    const auto parent = keys.empty() ? std::nullopt : std::optional(keys.back());
    keys.push_back(PrefixKey(ns_.fingerprint(), parent, AsBytes(std::to_string(i))));
  }
  for (size_t i = 0; i < 3; ++i) {
    std::string value = Value(2'000, static_cast<uint32_t>(i));
    StoreItem item = ToStore(ns_, keys[i], value);
    if (i > 0) item.parent = keys[i - 1];
    item.token_count = 256;
    ASSERT_TRUE(Outcome(client_->Store({item}, false, Soon())).ok());
  }
  const auto match = client_->Match({{ns_, keys}}, seconds(30), Soon());
  ASSERT_TRUE(Outcome(match).ok());
  EXPECT_EQ(match->match().chunks, 3u);
  EXPECT_EQ(match->match().bytes, 6'000u);
  ASSERT_EQ(match->match().details.size(), 3u);
  EXPECT_EQ(match->match().details[1].tier, Tier::kDram);
  const uint64_t reservation = match->match().reservation;
  ASSERT_NE(reservation, 0u);
  Landing landing(2'000);
  const auto fetch =
      client_->Fetch({ToFetch(ns_, keys[2], landing)}, {.reservation = reservation}, Soon());
  EXPECT_TRUE(Outcome(fetch).ok());
  EXPECT_EQ(fetch->items()[0].token_count, 256u);
  EXPECT_EQ(landing.view(), Value(2'000, 2));
  EXPECT_TRUE(Outcome(client_->Release(reservation, Soon())).ok());
  EXPECT_EQ(Outcome(client_->Release(reservation, Soon())).code(), Code::kFenced);
  ExpectIdle();
}

TEST_F(ClientDaemon, StatTouchAndPinTellOneStatusAKey) {
  ASSERT_TRUE(Put("a", Value(500, 1)).ok());
  const auto touch = client_->Touch(ns_, {Key("a"), Key("b"), Key("a")}, Soon());
  ASSERT_TRUE(touch->Wait(Soon()));
  EXPECT_EQ(touch->items()[0].status.code(), Code::kOk);
  EXPECT_EQ(touch->items()[1].status.code(), Code::kMiss);
  EXPECT_EQ(touch->items()[2].status.code(), Code::kMiss);  // Its prefix is not whole.
  EXPECT_TRUE(Outcome(client_->Pin(ns_, {Key("a")}, seconds(60), Soon())).ok());
  const auto stat = client_->Stat(ns_, Key("a"), Soon());
  ASSERT_TRUE(Outcome(stat).ok());
  EXPECT_EQ(stat->stat().stored_bytes, 500u);
  EXPECT_EQ(stat->stat().pins, 1u);
  const auto manifest = Manifest::Decode(stat->stat().manifest);
  ASSERT_TRUE(manifest.ok());
  EXPECT_EQ(manifest->TotalStoredBytes(), 500u);
  EXPECT_EQ(Outcome(client_->Stat(ns_, Key("b"), Soon())).code(), Code::kMiss);
}

TEST_F(ClientDaemon, NamespacesDoNotSeeOneAnother) {
  const Namespace other = *client_->OpenNamespace(TestDescriptor("another-model"));
  ASSERT_TRUE(Put("a", "mine").ok());
  Landing landing(100);
  // Even under the very same key.
  EXPECT_FALSE(Outcome(client_->Fetch({ToFetch(other, Key("a"), landing)}, {}, Soon())).ok());
  EXPECT_TRUE(landing.Untouched());
}

TEST_F(ClientDaemon, PingGoesThroughTheDataThread) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(Outcome(client_->Ping(Soon())).ok());
  }
}

TEST_F(ClientDaemon, BatchesOfSmallValuesThroughManyRequests) {
  constexpr size_t kItems = 3'000;
  std::vector<std::string> values;
  for (size_t i = 0; i < kItems; ++i) {
    values.push_back(Value(i % 300, static_cast<uint32_t>(i)) + "x");
  }
  std::vector<StoreItem> stores;
  for (size_t i = 0; i < kItems; ++i) {
    stores.push_back(ToStore(ns_, Key(std::to_string(i)), values[i]));
  }
  const auto store = client_->Store(stores, false, Soon());
  ASSERT_TRUE(store->Wait(Soon()));
  std::vector<std::string> got(kItems, std::string(400, Landing::kPoison));
  std::vector<FetchItem> fetches;
  for (size_t i = 0; i < kItems; ++i) {
    ASSERT_TRUE(store->items()[i].status.ok()) << store->items()[i].status.ToString();
    fetches.push_back({ns_, Key(std::to_string(i)), {Piece(got[i])}});
  }
  const auto fetch = client_->Fetch(fetches, {}, Soon());
  ASSERT_TRUE(fetch->Wait(Soon()));
  for (size_t i = 0; i < kItems; ++i) {
    ASSERT_TRUE(fetch->items()[i].status.ok()) << fetch->items()[i].status.ToString();
    ASSERT_EQ(got[i].substr(0, fetch->items()[i].bytes), values[i]);
  }
}

TEST_F(ClientDaemon, SelectionsBringWhatTheyNameChecked) {
  std::string value = Value(3'000, 1);
  StoreItem item = ToStore(ns_, Key("layers"), value);
  for (uint16_t layer = 0; layer < 3; ++layer) {
    item.segments.push_back({.kind = SegmentKind::kKv,
                             .layer_first = layer,
                             .layer_count = 1,
                             .logical_bytes = 1'000,
                             .stored_bytes = 1'000});
  }
  ASSERT_TRUE(Outcome(client_->Store({item}, false, Soon())).ok());
  Landing landing(1'000);
  const auto fetch = client_->Fetch({ToFetch(ns_, item.key, landing)},
                                    {.selection = Selection::Layers(1, 1).Encode()}, Soon());
  ASSERT_TRUE(Outcome(fetch).ok()) << Outcome(fetch).ToString();
  EXPECT_EQ(landing.view(), value.substr(1'000, 1'000));
}

// A store whose memory changes under it is refused at commit or stored as it was: never mixed.
TEST_F(ClientDaemon, MemoryThatChangesDuringAStoreIsRefusedOrWhole) {
  int refused = 0;
  for (int round = 0; round < 30; ++round) {
    const std::string name = "racing-" + std::to_string(round);
    const std::string before = Value(4 << 20, static_cast<uint32_t>(round));
    std::string memory = before;
    const auto store = client_->Store({ToStore(ns_, Key(name), memory)}, false, Soon());
    std::fill(memory.begin() + (1 << 20), memory.end(), 'Z');  // The caller breaks the rule.
    const Status status = Outcome(store);
    const std::string got = Get(name);
    if (status.ok()) {
      EXPECT_EQ(got == before, true) << round;
    } else {
      EXPECT_EQ(status.code(), Code::kChecksumMismatch) << status.ToString();
      EXPECT_EQ(got, "MISS");
      ++refused;
    }
  }
  EXPECT_GT(refused, 0) << "the race was never lost: the test shows nothing";
}

TEST_F(ClientDaemon, ManyThreadsUseOneSessionAndLeaveNothingBehind) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 30; ++i) {
        const std::string name = std::to_string(t) + "-" + std::to_string(i);
        const std::string value = Value(10'000, static_cast<uint32_t>(t * 1000 + i));
        if (!Put(name, value).ok() || Get(name, 20'000) != value) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(client_->stats().connects, 1u);
  EXPECT_EQ(Metric("penstock_sessions"), 1);
  ExpectIdle();
}

// Every way to end an operation early, at random moments: both sides come back to nothing.
TEST_F(ClientDaemon, OperationsThatEndEarlyLeaveNothingBehind) {
  std::mt19937 random(7);
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(Put("v" + std::to_string(i), Value(200'000, static_cast<uint32_t>(i))).ok());
  }
  for (int round = 0; round < 400; ++round) {
    const bool fetch = random() % 2 != 0;
    const auto patience = std::chrono::microseconds(random() % 3'000);
    std::string memory = Value(200'000, static_cast<uint32_t>(round));
    const Deadline deadline = random() % 3 == 0 ? Deadline::After(patience) : Soon();
    OperationPtr operation =
        fetch ? client_->Fetch({{ns_, Key("v" + std::to_string(random() % 40)), {Piece(memory)}}},
                               {}, deadline)
              : client_->Store({ToStore(ns_, Key("s" + std::to_string(round)), memory)}, false,
                               deadline);
    operation->Wait(Deadline::After(patience));
    if (random() % 2 != 0) operation->Cancel();
    operation.reset();
    std::fill(memory.begin(), memory.end(), 'Z');
  }
  EXPECT_TRUE(Outcome(client_->Ping(Soon())).ok());
  EXPECT_EQ(client_->stats().in_flight, 0u);
  ExpectIdle();
  for (int round = 0; round < 400; ++round) {
    const std::string got = Get("s" + std::to_string(round), 300'000);
    EXPECT_TRUE(got == "MISS" || got == Value(200'000, static_cast<uint32_t>(round))) << round;
  }
}

}  // namespace
}  // namespace penstock
