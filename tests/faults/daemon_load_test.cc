// A daemon under more than it can take: everything stays bounded, and comes back to nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "common/transport/socket.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/daemon_raw_client.h"

namespace penstock {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

class DaemonLoadTest : public testing::Test {
 protected:
  void Start(std::vector<std::string> args = {}) {
    auto daemon = DaemonProcess::Start({.args = std::move(args)});
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    daemon_ = std::move(*daemon);
  }
  std::unique_ptr<RawClient> Connect(EventLoop* loop = nullptr) {
    auto client = RawClient::Connect({.address = daemon_->address(), .streams = 1, .loop = loop});
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    return client.ok() ? std::move(*client) : nullptr;
  }
  double Metric(const std::string& name) { return daemon_->Scrape()[name]; }
  bool Eventually(const std::function<bool()>& holds) {
    const Deadline deadline = Deadline::After(std::chrono::seconds(30));
    while (!holds()) {
      if (deadline.Expired()) return false;
    }
    return true;
  }
  void ExpectIdle() {
    EXPECT_TRUE(Eventually([this] {
      auto metrics = daemon_->Scrape();
      for (const char* name :
           {"penstock_in_flight{request=\"fetch\"}", "penstock_in_flight{request=\"store\"}",
            "penstock_store_pending_items", "penstock_fetch_held_chunks",
            "penstock_fetch_queued_bytes", "penstock_verify_queue", "penstock_pending_chunks",
            "penstock_detached_chunks", "penstock_reservations", "penstock_sessions"}) {
        if (!metrics.contains(name) || metrics[name] != 0) return false;
      }
      return true;
    })) << "something stays held";
  }

  std::unique_ptr<DaemonProcess> daemon_;
};

constexpr size_t kChunk = 256u << 10;

// Puts with a bounded number of retries, as a client does that was told to come back.
Code PutPatiently(RawClient& client, const ChunkKey& key, const std::string& bytes) {
  Code code = Code::kBusy;
  for (int tries = 0; tries < 100 && code == Code::kBusy; ++tries) code = client.Put(key, bytes);
  return code;
}

// What a prober does again and again over all keys.
using Probe = std::function<void(RawClient&, const std::vector<ChunkKey>&)>;

class DaemonProbesTest : public DaemonLoadTest, public testing::WithParamInterface<int> {};

void ProbeOnce(int kind, RawClient& client, const std::vector<ChunkKey>& keys) {
  switch (kind) {
    case 0:  // Existence.
      for (const ChunkKey& key : keys) {
        if (!client.Match({key}).ok()) return;
      }
      return;
    case 1:  // Existence with a promise.
      for (const ChunkKey& key : keys) {
        if (!client.Match({key}, 500).ok()) return;
      }
      return;
    case 2:
      client.Keys(MessageType::kTouch, keys);
      return;
    default:
      client.GetMany({keys[keys.size() / 2], keys.back()}, kChunk);
  }
}

TEST_P(DaemonProbesTest, NeverKeepAFullArenaFromTakingNewChunks) {
  Start();
  const auto writer = Connect();
  std::vector<ChunkKey> old_keys;
  for (int i = 0; i < 260; ++i) {
    old_keys.push_back(writer->Key("old" + std::to_string(i)));
    ASSERT_EQ(PutPatiently(*writer, old_keys.back(), TellingBytes(old_keys.back(), 1, kChunk)),
              Code::kOk);
  }
  std::atomic<bool> over{false};
  std::vector<std::thread> probers;
  for (int t = 0; t < 3; ++t) {
    probers.emplace_back([&] {
      const auto client = Connect();
      while (!over && client != nullptr) ProbeOnce(GetParam(), *client, old_keys);
    });
  }
  int stored = 0;
  for (int i = 0; i < 500; ++i) {
    const ChunkKey key = writer->Key("new" + std::to_string(i));
    const Code code = PutPatiently(*writer, key, TellingBytes(key, 1, kChunk));
    stored += code == Code::kOk ? 1 : 0;
    EXPECT_THAT(code, AnyOf(Code::kOk, Code::kBusy));
  }
  over = true;
  for (std::thread& prober : probers) prober.join();
  EXPECT_GE(stored, 495);
  EXPECT_GE(Metric("penstock_removed_chunks_total{how=\"evicted\"}"), 400);
}
INSTANTIATE_TEST_SUITE_P(ExistenceReserveTouchAndGet, DaemonProbesTest,
                         testing::Values(0, 1, 2, 3));

TEST_F(DaemonLoadTest, ATierOfPinsSaysSoAndNothingElse) {
  Start({"--store.max_pinned_percent=95"});
  const auto client = Connect();
  std::vector<ChunkKey> pinned;
  for (int i = 0; i < 400; ++i) {
    const ChunkKey key = client->Key("pin" + std::to_string(i));
    if (client->Put(key, TellingBytes(key, 1, kChunk)) != Code::kOk) break;
    if (client->Keys(MessageType::kPin, {key}, 600000)[0] != Code::kOk) break;
    pinned.push_back(key);
  }
  EXPECT_GE(pinned.size(), 200u);
  const std::string large(8u << 20, 'x');
  EXPECT_EQ(client->Put(client->Key("large"), large), Code::kAllPinned);
  EXPECT_EQ(Metric("penstock_store_items_total{outcome=\"refused\",reason=\"ALL_PINNED\"}"), 1);
  EXPECT_THAT(client->Keys(MessageType::kPin, pinned, 0), testing::Each(Code::kOk));
  EXPECT_EQ(Metric("penstock_pinned_chunks"), 0);
  EXPECT_EQ(client->Put(client->Key("large"), large), Code::kOk);
}

TEST_F(DaemonLoadTest, OperationsAbortedAtAnyMomentLeaveNothingHeld) {
  Start({"--session.peer_timeout=2s", "--session.heartbeat=500ms"});
  {
    const auto filler = Connect();
    for (int i = 0; i < 40; ++i) {
      const ChunkKey key = filler->Key("there" + std::to_string(i));
      ASSERT_EQ(filler->Put(key, TellingBytes(key, 1, kChunk)), Code::kOk);
    }
  }
  std::mt19937 random(20261129);
  for (int round = 0; round < 150; ++round) {
    const auto client = Connect();
    ASSERT_NE(client, nullptr);
    for (int op = 0; op < 6; ++op) {
      const ChunkKey key = client->Key("abort" + std::to_string(random() % 50));
      const ChunkKey there = client->Key("there" + std::to_string(random() % 40));
      StoreBuilder store(client->fingerprint());
      const std::string bytes = TellingBytes(key, static_cast<uint32_t>(round), kChunk);
      store.Add(key, bytes);
      store.request.replace = true;
      store.request.deadline_ms = random() % 4 == 0 ? 1 : 20000;
      FetchRequest fetch;
      fetch.namespaces = {client->fingerprint()};
      fetch.items.push_back({.key = there, .capacity = kChunk});
      uint64_t id = 0;
      switch (random() % 3) {
        case 0:
          id = client->Send(MessageType::kStore, store.Encode());
          client->SendBytes(id, 0, 0, std::string_view(bytes).substr(0, random() % kChunk));
          break;
        case 1:
          id = client->Send(MessageType::kFetch, fetch.Encode());  // Into nowhere.
          break;
        default:
          ASSERT_TRUE(client->Match({there}, 60000).ok());
      }
      if (id != 0 && random() % 2 == 0) client->SendWithId(id, MessageType::kCancel, {});
    }
    // The session ends in the middle of whatever is left.
  }
  ExpectIdle();
  // As good as new: the whole of it can be filled again.
  const auto client = Connect();
  for (int i = 0; i < 300; ++i) {
    const ChunkKey key = client->Key("after" + std::to_string(i));
    ASSERT_EQ(PutPatiently(*client, key, TellingBytes(key, 1, kChunk)), Code::kOk) << i;
  }
}

TEST_F(DaemonLoadTest, FiveHundredSessionsAtOnce) {
  Start({"--limits.session_streams=2"});
  const size_t before = DescriptorCount(daemon_->pid());
  const size_t threads = ThreadCount(daemon_->pid());
  {
    std::vector<std::unique_ptr<EventLoop>> loops;
    for (int i = 0; i < 2; ++i) {
      auto loop = EventLoop::Start("clients");
      ASSERT_TRUE(loop.ok());
      loops.push_back(std::move(*loop));
    }
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int i = 0; i < 500; ++i) {
      clients.push_back(Connect(loops[static_cast<size_t>(i) % 2].get()));
      ASSERT_NE(clients.back(), nullptr) << i;
    }
    EXPECT_EQ(Metric("penstock_sessions"), 500);
    for (size_t i = 0; i < clients.size(); ++i) {
      const ChunkKey key = clients[i]->Key("of" + std::to_string(i));
      ASSERT_EQ(clients[i]->Put(key, TellingBytes(key, 1, 4096)), Code::kOk);
      const auto got = clients[(i * 7) % clients.size()]->Get(key, 4096);
      ASSERT_TRUE(got.ok());
      ASSERT_EQ(ToldVersion(key, *got), 1u);
    }
    EXPECT_LE(ThreadCount(daemon_->pid()), threads + 8) << "no thread a session";
    clients.clear();
  }
  EXPECT_TRUE(Eventually([this] { return Metric("penstock_sessions") == 0; }));
  EXPECT_TRUE(Eventually([&] { return DescriptorCount(daemon_->pid()) <= before + 4; }));
}

TEST_F(DaemonLoadTest, NothingThatClientsDoFloodsTheLog) {
  Start({"--session.hello_timeout=300ms"});
  const size_t lines_before = [&] {
    const std::string log = daemon_->process().Log();
    return static_cast<size_t>(std::count(log.begin(), log.end(), '\n'));
  }();
  const auto resolved = Resolve(daemon_->address(), /*passive=*/false);
  ASSERT_TRUE(resolved.ok());
  for (int i = 0; i < 3000; ++i) {
    const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(fd.get(), resolved->front().get(), resolved->front().length), 0);
    const std::string garbage(100, static_cast<char>(i));
    EXPECT_GT(send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  }
  for (int i = 0; i < 100; ++i) {
    const auto client = Connect();
    ASSERT_NE(client, nullptr);
    for (int n = 0; n < 20; ++n) {
      client->Send(static_cast<MessageType>(100 + n), {});
      client->Send(MessageType::kStore, std::vector<std::byte>(7));
    }
    StoreBuilder store(client->fingerprint());
    store.Add(client->Key("half"), std::string(100000, 'x'));
    client->Send(MessageType::kStore, store.Encode());
  }
  ASSERT_TRUE(Eventually([this] { return Metric("penstock_sessions") == 0; }));
  const std::string log = daemon_->process().Log();
  const auto lines = static_cast<size_t>(std::count(log.begin(), log.end(), '\n'));
  EXPECT_LT(lines - lines_before, 100u);
  EXPECT_THAT(log, HasSubstr("not a Penstock frame")) << "the first cause is there";
  EXPECT_EQ(log.find("xxxxxxxx"), log.npos) << "payload in the log";
}

}  // namespace
}  // namespace penstock
