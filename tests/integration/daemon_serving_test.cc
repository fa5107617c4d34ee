#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "common/format/checksum.h"
#include "common/transport/hello.h"
#include "common/transport/socket.h"
#include "tests/integration/daemon_fixture.h"

namespace penstock {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

using DaemonServingTest = DaemonTest;

TEST_F(DaemonServingTest, EverySizeComesBackAsItWent) {
  Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  for (const size_t size :
       {0u, 1u, 63u, 64u, 4096u, 65535u, 65536u, 65537u, 262145u, 1048576u, 5000001u}) {
    const ChunkKey key = client->Key(std::to_string(size));
    const std::string bytes = TellingBytes(key, 7, size);
    ASSERT_EQ(client->Put(key, bytes), Code::kOk) << size;
    const auto got = client->Get(key);
    ASSERT_TRUE(got.ok()) << size << ": " << got.status().ToString();
    ASSERT_TRUE(*got == bytes) << size;
  }
  ExpectIdle();
}

TEST_F(DaemonServingTest, EveryAddressServes) {
  const TempDir directory;
  DaemonOptions options = SmallDaemon();
  options.listen.push_back(
      {Address{.kind = Address::Kind::kUnix, .host = directory.path() + "/penstock.sock"}});
  const bool has_v6 = Resolve({.host = "::1"}, true).ok() &&
                      ListenOn(Resolve({.host = "::1"}, true)->front(), true, 1).ok();
  if (has_v6) options.listen.push_back({Address{.host = "::1"}});
  Start(std::move(options));
  EXPECT_EQ(daemon_->addresses().size(), has_v6 ? 3u : 2u);
  for (const Address& one : daemon_->addresses()) {
    if (one.kind == Address::Kind::kTcp) {
      EXPECT_NE(one.port, 0);
    }
    auto client = RawClient::Connect(one);
    ASSERT_TRUE(client.ok()) << one.ToString() << ": " << client.status().ToString();
    const ChunkKey key = (*client)->Key(one.ToString());
    EXPECT_EQ((*client)->Put(key, "bytes"), Code::kOk);
    EXPECT_EQ(*(*client)->Get(key), "bytes");
  }
}

TEST_F(DaemonServingTest, EagerDataMayComeBeforeOrAfterItsRequest) {
  Start();
  const auto client = Connect();
  const auto reader = Connect();
  for (int i = 0; i < 400; ++i) {
    const ChunkKey key = client->Key("eager" + std::to_string(i));
    const std::string bytes = TellingBytes(key, 1, 64 + static_cast<size_t>(i) * 37 % 4096);
    StoreBuilder store(client->fingerprint());
    store.Add(key, bytes);
    store.request.eager = true;
    store.request.deadline_ms = 20000;
    const uint64_t id = 1000 + static_cast<uint64_t>(i);
    if (i % 2 == 0) client->SendBytes(id, 0, 0, bytes);
    client->SendWithId(id, MessageType::kStore, store.Encode());
    if (i % 2 == 1) client->SendBytes(id, 0, 0, bytes);
    const auto statuses = client->TakeStatuses(id);
    ASSERT_TRUE(statuses.ok()) << statuses.status().ToString();
    ASSERT_THAT(*statuses, ElementsAre(Code::kOk)) << i;
    ASSERT_EQ(*reader->Get(key, 8192), bytes);
  }
  EXPECT_EQ(Metric("penstock_discarded_data_frames_total"), 0);
  ExpectIdle();
}

TEST_F(DaemonServingTest, ManySessionsAtOnceNeverSeeAWrongByte) {
  Start();
  constexpr int kThreads = 8, kRounds = 60;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0}, hits{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto client = Connect({.name = "worker" + std::to_string(t)});
      if (client == nullptr) return void(++wrong);
      for (int i = 0; i < kRounds; ++i) {
        const ChunkKey key = client->Key(std::to_string((i * 7 + t) % 50));
        const size_t size = 64 * (1 + key.Word() % 8000);
        const Code put = client->Put(key, TellingBytes(key, static_cast<uint32_t>(t), size),
                                     /*replace=*/i % 3 == 0);
        if (put != Code::kOk && put != Code::kAlreadyExists && put != Code::kBusy) ++wrong;
        const auto got = client->Get(client->Key(std::to_string((i * 11 + t) % 50)), 1u << 20);
        if (!got.ok()) {
          if (got.status().code() != Code::kMiss) ++wrong;
          continue;
        }
        ++hits;
        if (!ToldVersion(client->Key(std::to_string((i * 11 + t) % 50)), *got)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, kRounds);
  ExpectIdle();
}

TEST_F(DaemonServingTest, AMatchPromisesOnlyWhatAFetchGets) {
  Start();
  const auto client = Connect();
  std::vector<ChunkKey> keys;
  for (int i = 0; i < 20; ++i) keys.push_back(client->Key("prefix" + std::to_string(i)));
  for (int i = 0; i < 15; ++i)
    ASSERT_EQ(client->Put(keys[i], TellingBytes(keys[i], 1, 1000)), Code::kOk);
  const auto match = client->Match(keys, 30000);
  ASSERT_TRUE(match.ok());
  EXPECT_EQ(match->matched_chunks, 15u);
  EXPECT_EQ(match->matched_bytes, 15000u);
  EXPECT_NE(match->reservation, 0u);
  keys.resize(15);
  for (const auto& got : client->GetMany(keys, 1000)) EXPECT_TRUE(got.ok());
}

TEST_F(DaemonServingTest, AFailingRequestSaysWhyAndTheSessionGoesOn) {
  Start();
  const auto client = Connect();
  const uint64_t unknown = client->Send(static_cast<MessageType>(77), std::vector<std::byte>(5));
  EXPECT_EQ(client->TakeStatus(unknown).code(), Code::kUnimplemented);
  const uint64_t garbage = client->Send(MessageType::kFetch, std::vector<std::byte>(5));
  EXPECT_EQ(client->TakeStatus(garbage).code(), Code::kCorruptMessage);
  EXPECT_EQ(client->Get(client->Key("nothing")).status().code(), Code::kMiss);
  const std::string bytes(2000, 'x');
  EXPECT_EQ(client->Put(client->Key("a"), bytes), Code::kOk);
  EXPECT_EQ(client->Get(client->Key("a"), 1999).status().code(), Code::kBufferTooSmall);
  EXPECT_EQ(client->Put(client->Key("huge"), std::string(17u << 20, 'x')), Code::kTooLarge);
  EXPECT_EQ(Metric("penstock_requests_total{request=\"unknown\",status=\"UNIMPLEMENTED\"}"), 1);
  EXPECT_EQ(Metric("penstock_requests_total{request=\"fetch\",status=\"CORRUPT_MESSAGE\"}"), 1);
  ExpectIdle();
}

// Connects to `address` and writes `bytes`; returns what the daemon says once it has closed the
// connection.
std::string Knock(const Address& address, std::string_view bytes, bool wait = true) {
  const auto resolved = Resolve(address, /*passive=*/false);
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(fd.get(), resolved->front().get(), resolved->front().length), 0);
  while (!bytes.empty()) {
    const ssize_t sent = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  std::string answer;
  if (!wait) return answer;
  pollfd closed{fd.get(), POLLIN | POLLHUP, 0};
  char buffer[256];
  for (;;) {
    if (poll(&closed, 1, 20000) <= 0) {
      ADD_FAILURE() << "the daemon keeps listening to garbage";
      return answer;
    }
    const ssize_t got = recv(fd.get(), buffer, sizeof(buffer), 0);
    if (got <= 0) return answer;
    answer.append(buffer, static_cast<size_t>(got));
  }
}

TEST_F(DaemonServingTest, GarbageOnThePortIsRefusedCountedAndHarmless) {
  DaemonOptions options = SmallDaemon();
  options.session.hello_timeout = std::chrono::milliseconds(500);
  Start(std::move(options));
  const auto before = Connect();
  Knock(address(), "GET / HTTP/1.1\r\nHost: penstock\r\n\r\n");
  Knock(address(), std::string(100000, '\xff'));
  Knock(address(), std::string(31, '\0'));  // Less than a header: the hello timeout ends it.
  FrameHeader skewed = MakeFrameHeader(MessageType::kHello, 0, 0);
  Knock(address(), {reinterpret_cast<const char*>(&skewed), sizeof(skewed)});
  for (int i = 0; i < 50; ++i) Knock(address(), "", /*wait=*/false);  // A port scan.
  EXPECT_TRUE(Eventually([this] {
    double refused = 0;
    for (const auto& [name, value] : Metrics()) {
      if (name.starts_with("penstock_connections_refused_total")) refused += value;
    }
    return refused >= 54;
  }));
  const auto after = Connect();
  EXPECT_EQ(after->Put(after->Key("a"), "bytes"), Code::kOk);
  EXPECT_EQ(*before->Get(before->Key("a")), "bytes");
}

TEST_F(DaemonServingTest, AClientOfAnotherVersionIsToldBothAndCounted) {
  Start();
  Hello hello;
  hello.version_min = 98;
  hello.version_max = 99;
  hello.software = "penstock 98.0.0";
  hello.wires = {"tcp"};
  const std::vector<std::byte> body = EncodeHello(hello);
  const FrameHeader header =
      MakeFrameHeader(MessageType::kHello, 0, static_cast<uint32_t>(body.size()));
  const std::string answer =
      Knock(address(), std::string(reinterpret_cast<const char*>(&header), sizeof(header)) +
                           std::string(AsText(body)));
  ASSERT_GT(answer.size(), sizeof(FrameHeader));
  const auto reply = ParseHelloReply(AsBytes(answer).subspan(sizeof(FrameHeader)));
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(CodeFromWire(reply->status), Code::kVersionSkew);
  EXPECT_THAT(reply->message, HasSubstr("98"));
  EXPECT_THAT(reply->message, HasSubstr(std::to_string(kProtocolVersion)));
  EXPECT_TRUE(Eventually([this] {
    return Metric("penstock_connections_refused_total{reason=\"VERSION_SKEW\"}") == 1;
  }));
}

TEST_F(DaemonServingTest, ASlowReaderGetsWhatWasPromisedThoughAllElseWasReplaced) {
  DaemonOptions options = SmallDaemon();
  options.serving.fetch_window_bytes = 256u << 10;
  options.serving.max_fetching = 1;  // One session holds half of it: 32 MiB, and wants 30.
  Start(std::move(options));
  // The reader's thread stands still when the first bytes are there, until it is told to go on.
  Mutex mu;
  CondVar changed;
  bool reading = false, go_on = true;
  const auto slow = Connect({.before_data = [&] {
    MutexLock lock(mu);
    reading = true;
    changed.SignalAll();
    while (!go_on) changed.Wait(mu);
  }});
  const auto other = Connect();
  for (int round = 0; round < 5; ++round) {
    std::vector<ChunkKey> keys;  // More than sockets hold.
    for (int i = 0; i < 5; ++i) {
      keys.push_back(slow->Key("slow" + std::to_string(round * 10 + i)));
      ASSERT_EQ(slow->Put(keys.back(), TellingBytes(keys.back(), 1, 6u << 20)), Code::kOk);
    }
    const auto set = [&](bool new_reading, bool new_go_on) {
      MutexLock lock(mu);
      reading = new_reading;
      go_on = new_go_on;
      changed.SignalAll();
    };
    set(false, false);
    std::vector<Result<std::string>> got;
    std::thread reader([&] { got = slow->GetMany(keys); });
    {
      MutexLock lock(mu);
      while (!reading) changed.Wait(mu);
    }
    for (int i = 0; i < 100; ++i) {
      const ChunkKey filler = other->Key(std::to_string(round) + "." + std::to_string(i));
      ASSERT_EQ(other->Put(filler, TellingBytes(filler, 2, 1u << 20)), Code::kOk);
    }
    EXPECT_THAT(other->Keys(MessageType::kDrop, keys),
                Each(testing::AnyOf(Code::kOk, Code::kMiss)));
    EXPECT_GE(Metric("penstock_fetch_held_chunks"), 1);
    set(true, true);
    reader.join();
    for (size_t i = 0; i < keys.size(); ++i) {
      ASSERT_TRUE(got[i].ok()) << got[i].status().ToString();
      EXPECT_EQ(ToldVersion(keys[i], *got[i]), 1u);
    }
  }
  ExpectIdle();
}

TEST_F(DaemonServingTest, AClientThatGoesAwayInMidStoreLeavesNothing) {
  Start();
  const double used = Metric("penstock_arena_used_bytes");
  for (int i = 0; i < 30; ++i) {
    const auto client = Connect();
    const ChunkKey key = client->Key("half" + std::to_string(i % 3));
    const std::string bytes = TellingBytes(key, 1, 1u << 20);
    StoreBuilder store(client->fingerprint());
    store.Add(key, bytes);
    const uint64_t id = client->Send(MessageType::kStore, store.Encode());
    const auto grant = client->TakeGrant(id);
    ASSERT_TRUE(grant.ok());
    ASSERT_THAT(*grant, ElementsAre(Code::kOk));
    client->SendBytes(id, 0, 0, std::string_view(bytes).substr(0, 1 + i * 30000));
    ASSERT_TRUE(client->Match({key}, 10000).ok());
  }
  ExpectIdle();
  EXPECT_TRUE(Eventually([&] { return Metric("penstock_arena_used_bytes") == used; }));
  // CANCELLED, as the client's goodbye says, where its end met bytes that were just landing.
  const std::string failed = "penstock_store_items_total{outcome=\"failed\",reason=";
  EXPECT_EQ(Metric(failed + "\"DISCONNECTED\"}") + Metric(failed + "\"CANCELLED\"}"), 30);
  EXPECT_TRUE(Eventually([this] { return Metric("penstock_sessions") == 0; }));
}

TEST_F(DaemonServingTest, AWriterThatStopsIsDroppedAtItsDeadlineAndFenced) {
  DaemonOptions options = SmallDaemon();
  options.serving.store_grace = std::chrono::milliseconds(50);
  Start(std::move(options));
  const auto zombie = Connect();
  const auto other = Connect();
  const ChunkKey key = zombie->Key("contested");
  const std::string old_bytes = TellingBytes(key, 1, 1u << 20);
  StoreBuilder store(zombie->fingerprint());
  store.Add(key, old_bytes);
  store.request.deadline_ms = 200;
  const uint64_t id = zombie->Send(MessageType::kStore, store.Encode());
  ASSERT_TRUE(zombie->TakeGrant(id).ok());
  zombie->SendBytes(id, 0, 0, std::string_view(old_bytes).substr(0, 500000));
  const auto statuses = zombie->TakeStatuses(id);
  ASSERT_TRUE(statuses.ok());
  EXPECT_THAT(*statuses, ElementsAre(Code::kDeadlineExceeded));

  const std::string new_bytes = TellingBytes(key, 2, 1u << 20);
  ASSERT_EQ(other->Put(key, new_bytes), Code::kOk);
  zombie->SendBytes(id, 0, 500000, std::string_view(old_bytes).substr(500000));
  const auto got = zombie->Get(key);  // Behind the late bytes on the same session.
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(ToldVersion(key, *got), 2u);
  EXPECT_TRUE(Eventually([this] { return Metric("penstock_discarded_data_frames_total") >= 1; }));
  ExpectIdle();
}

TEST_F(DaemonServingTest, TenantsDoNotSeeOneAnother) {
  Start();
  const auto mine = Connect();
  const ChunkKey key = mine->Key("secret");
  ASSERT_EQ(mine->Put(key, "secret bytes"), Code::kOk);
  const auto theirs = Connect({.tenant = "other", .open_namespace = false});
  const uint64_t id = theirs->Send(MessageType::kOpenNamespace,
                                   OpenNamespaceRequest{TestNamespace().Encode()}.Encode());
  EXPECT_EQ(theirs->TakeStatus(id).code(), Code::kPermissionDenied);
  EXPECT_EQ(theirs->Get(key).status().code(), Code::kMiss);
  EXPECT_EQ(theirs->Match({key})->matched_chunks, 0u);
  EXPECT_THAT(theirs->Keys(MessageType::kDrop, {key}), ElementsAre(Code::kMiss));
  EXPECT_EQ(*mine->Get(key), "secret bytes");
}

TEST_F(DaemonServingTest, StoppingFinishesWhatIsInFlightAndSaysGoodbye) {
  Start();
  const auto client = Connect();
  const ChunkKey key = client->Key("last");
  const std::string bytes = TellingBytes(key, 1, 100000);
  StoreBuilder store(client->fingerprint());
  store.Add(key, bytes);
  const uint64_t id = client->Send(MessageType::kStore, store.Encode());
  ASSERT_TRUE(client->TakeGrant(id).ok());
  bool drained = false;
  std::thread stopper([&] { drained = daemon_->Stop(std::chrono::seconds(30)); });
  ASSERT_TRUE(Eventually([this] { return daemon_->serving().draining.load(); }));
  EXPECT_EQ(client->Get(key).status().code(), Code::kDisconnected);
  client->SendBytes(id, 0, 0, bytes);
  const auto statuses = client->TakeStatuses(id);
  ASSERT_TRUE(statuses.ok()) << statuses.status().ToString();
  EXPECT_THAT(*statuses, Each(Code::kOk));
  stopper.join();
  EXPECT_TRUE(drained);
  EXPECT_THAT(client->WaitClosed().ToString(), HasSubstr("shutting down"));
}

TEST_F(DaemonServingTest, StoppingDoesNotWaitForEverForAClientThatSleeps) {
  Start();
  const auto client = Connect();
  StoreBuilder store(client->fingerprint());
  store.Add(client->Key("never"), std::string(1000, 'x'));
  const uint64_t id = client->Send(MessageType::kStore, store.Encode());
  ASSERT_TRUE(client->TakeGrant(id).ok());
  EXPECT_FALSE(daemon_->Stop(std::chrono::milliseconds(100)));
}

TEST_F(DaemonServingTest, SessionsBeyondTheLimitAreToldToComeBack) {
  DaemonOptions options = SmallDaemon();
  options.max_sessions = 3;
  options.health.interval = std::chrono::hours(1);
  Start(std::move(options));
  ASSERT_TRUE(daemon_->health().WaitReady(Deadline::After(std::chrono::seconds(20))).ok());
  // The self-check's own session may take a moment to go.
  ASSERT_TRUE(Eventually([this] { return daemon_->serving().directory.size() == 0; }));
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(Connect());
  const auto fourth = RawClient::Connect(address());
  EXPECT_EQ(fourth.status().code(), Code::kBusy) << fourth.status().ToString();
  clients.pop_back();
  EXPECT_TRUE(Eventually([this] { return RawClient::Connect(address()).ok(); }));
}

}  // namespace
}  // namespace penstock
