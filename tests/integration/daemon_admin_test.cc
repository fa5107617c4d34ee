#include <grpcpp/create_channel.h>
#include <grpcpp/grpcpp.h>

#include "common/api/penstock_admin.grpc.pb.h"
#include "tests/integration/daemon_fixture.h"

namespace penstock {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class DaemonAdminTest : public DaemonTest {
 protected:
  void Start(DaemonOptions options = SmallDaemon()) {
    DaemonTest::Start(std::move(options));
    admin_ = admin::v1::Admin::NewStub(
        grpc::CreateChannel(daemon_->facts().admin_address, grpc::InsecureChannelCredentials()));
  }
  template <typename Request, typename Reply>
  Reply Call(grpc::Status (admin::v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&,
                                                            Reply*),
             const Request& request, grpc::StatusCode want = grpc::StatusCode::OK) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    Reply reply;
    const grpc::Status status = (admin_.get()->*method)(&context, request, &reply);
    EXPECT_EQ(status.error_code(), want) << status.error_message();
    error_ = status.error_message();
    return reply;
  }
  admin::v1::HealthReply Health(bool fresh = false) {
    admin::v1::HealthRequest request;
    request.set_fresh(fresh);
    return Call(&admin::v1::Admin::Stub::Health, request);
  }
  static std::vector<std::string> Reasons(const admin::v1::HealthReply& reply) {
    std::vector<std::string> reasons;
    for (const auto& reason : reply.reasons()) reasons.push_back(reason.what());
    return reasons;
  }

  std::unique_ptr<admin::v1::Admin::Stub> admin_;
  std::string error_;
};

// Health that reacts within a second or so, so that tests need not wait longer.
DaemonOptions QuickHealth() {
  DaemonOptions options = SmallDaemon();
  options.health.interval = std::chrono::milliseconds(100);
  options.health.timeout = std::chrono::milliseconds(800);
  options.health.dead_after = std::chrono::milliseconds(2500);
  return options;
}

TEST_F(DaemonAdminTest, HealthIsTheOutcomeOfARealStoreAndFetch) {
  Start();
  const auto health = Health(/*fresh=*/true);
  EXPECT_TRUE(health.live());
  EXPECT_TRUE(health.ready());
  EXPECT_FALSE(health.degraded());
  EXPECT_THAT(Reasons(health), IsEmpty());
  EXPECT_GE(health.self_checks(), 1u);
  EXPECT_GT(health.self_check_took_us(), 0u);
  const ServingCounters& internal = daemon_->serving().internal_counters;
  EXPECT_GE(internal.store_committed.value(), 1u);
  EXPECT_GE(internal.fetch_delivered.value(), 1u);
  EXPECT_EQ(daemon_->serving().counters.StoreItems(), 0u) << "clients' figures are theirs alone";
}

TEST_F(DaemonAdminTest, AStuckDataThreadTurnsReadyFalseAndBack) {
  DaemonOptions options = QuickHealth();
  options.health.dead_after = std::chrono::seconds(60);
  Start(std::move(options));
  ASSERT_TRUE(daemon_->health().WaitReady(Deadline::After(std::chrono::seconds(20))).ok());
  for (EventLoop* loop : daemon_->data_loops()) {
    Mutex mu;
    mu.Lock();
    loop->Post([&mu] { MutexLock stuck(mu); });
    // A self-check that does not end may be noticed before that.
    const auto named = [this] {
      const auto health = Health();
      EXPECT_TRUE(health.live());
      return !health.ready() && testing::Value(Reasons(health), Contains("data-thread"));
    };
    EXPECT_TRUE(Eventually(named, std::chrono::seconds(10)));
    mu.Unlock();
    EXPECT_TRUE(Eventually([this] { return Health().ready(); }, std::chrono::seconds(10)));
    loop->Run([] {});  // The lock is not used any more.
  }
}

TEST_F(DaemonAdminTest, ADataThreadThatStaysSilentIsNotAlive) {
  Start(QuickHealth());
  Mutex mu;
  mu.Lock();
  EventLoop* const loop = daemon_->data_loops().back();
  loop->Post([&mu] { MutexLock stuck(mu); });
  EXPECT_TRUE(Eventually([this] { return !Health().live(); }, std::chrono::seconds(20)));
  mu.Unlock();
  EXPECT_TRUE(
      Eventually([this] { return Health().live() && Health().ready(); }, std::chrono::seconds(20)));
  loop->Run([] {});
}

// The store asks for the time in every operation: a clock that waits holds up all who come.
class StuckClock {
 public:
  MonotonicTime operator()() {
    MutexLock lock(mu_);
    while (stuck_) changed_.Wait(mu_);
    return MonotonicNow();
  }
  void Set(bool stuck) {
    MutexLock lock(mu_);
    stuck_ = stuck;
    changed_.SignalAll();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool stuck_ ABSL_GUARDED_BY(mu_) = false;
};

TEST_F(DaemonAdminTest, AStuckStoreTurnsReadyFalseAndBack) {
  StuckClock clock;
  DaemonOptions options = QuickHealth();
  options.store.clock = [&clock] { return clock(); };
  Start(std::move(options));
  ASSERT_TRUE(daemon_->health().WaitReady(Deadline::After(std::chrono::seconds(20))).ok());
  clock.Set(true);
  EXPECT_TRUE(Eventually([this] { return !Health().ready(); }, std::chrono::seconds(10)));
  EXPECT_THAT(Reasons(Health()), Not(IsEmpty()));
  clock.Set(false);
  EXPECT_TRUE(Eventually([this] { return Health().ready(); }, std::chrono::seconds(10)));
  daemon_.reset();
}

TEST_F(DaemonAdminTest, AFullTierIsDegradedAndNotUnready) {
  DaemonOptions options = QuickHealth();
  options.store.max_pinned = 0.95;
  Start(std::move(options));
  const auto client = Connect();
  // Fill it with chunks that may not go.
  const std::string bytes(1u << 20, 'x');
  for (int i = 0; i < 70; ++i) {
    const ChunkKey key = client->Key(std::to_string(i));
    if (client->Put(key, bytes) != Code::kOk) break;
    if (client->Keys(MessageType::kPin, {key}, 600000)[0] != Code::kOk) break;
  }
  // Whether the last bytes still take a self-check depends on sizes; pinned chunks never make it
  // unready.
  const auto health = Health(/*fresh=*/true);
  EXPECT_TRUE(health.ready());
  EXPECT_TRUE(health.live());
}

TEST_F(DaemonAdminTest, StatusTellsWhatItIsAndWhatItWasTold) {
  DaemonOptions options = SmallDaemon();
  options.arena_reason = "because a test said so";
  options.start_up = {"chosen for the test"};
  options.config = {{"arena.size", "64MiB", "flag --arena.size"}};
  Start(std::move(options));
  const auto client = Connect();
  ASSERT_EQ(client->Put(client->Key("a"), std::string(1000, 'x')), Code::kOk);
  const auto status = Call(&admin::v1::Admin::Stub::Status, admin::v1::StatusRequest());
  EXPECT_EQ(status.version(), "penstockd test");
  EXPECT_EQ(status.incarnation().size(), 16u);
  EXPECT_EQ(status.pid(), static_cast<uint64_t>(getpid()));
  EXPECT_THAT(status.addresses(), ElementsAre(address().ToString()));
  EXPECT_EQ(status.sessions(), 1u);
  EXPECT_EQ(status.arena().capacity_bytes(), 64u << 20);
  EXPECT_EQ(status.arena().chosen_because(), "because a test said so");
  EXPECT_EQ(status.config(0).source(), "flag --arena.size");
  std::map<std::string, double> counters;
  for (const auto& counter : status.counters()) counters[counter.name()] = counter.value();
  EXPECT_EQ(counters["penstock_store_items_total{outcome=\"committed\",reason=\"\"}"], 1);
}

TEST_F(DaemonAdminTest, NamespacesAndSessionsAreListed) {
  Start();
  const auto client = Connect({.name = "a worker"});
  ASSERT_EQ(client->Put(client->Key("a"), std::string(1000, 'x')), Code::kOk);
  const auto namespaces = Call(&admin::v1::Admin::Stub::Namespaces, admin::v1::NamespacesRequest());
  ASSERT_EQ(namespaces.namespaces_size(), 1);
  EXPECT_EQ(namespaces.namespaces(0).fingerprint(), client->fingerprint().ToHex());
  EXPECT_EQ(namespaces.namespaces(0).chunks(), 1u);
  EXPECT_EQ(namespaces.namespaces(0).bytes(), 1000u);
  EXPECT_THAT(namespaces.namespaces(0).descriptor_json(), HasSubstr("tests/daemon"));

  const auto sessions = Call(&admin::v1::Admin::Stub::Sessions, admin::v1::SessionsRequest());
  ASSERT_EQ(sessions.sessions_size(), 1);
  EXPECT_EQ(sessions.sessions(0).name(), "a worker");
  EXPECT_EQ(sessions.sessions(0).wire(), "tcp");
  EXPECT_EQ(sessions.sessions(0).stored_bytes(), 1000u);
  EXPECT_GE(sessions.sessions(0).requests(), 2u);
}

TEST_F(DaemonAdminTest, DropForgetsAKeyANamespaceOrEverything) {
  Start();
  const auto client = Connect();
  for (const char* name : {"a", "b", "c"})
    ASSERT_EQ(client->Put(client->Key(name), name), Code::kOk);
  admin::v1::DropRequest request;
  request.mutable_key()->set_namespace_fingerprint(client->fingerprint().ToHex());
  request.mutable_key()->set_key(client->Key("a").ToHex());
  EXPECT_EQ(Call(&admin::v1::Admin::Stub::Drop, request).dropped_chunks(), 1u);
  EXPECT_EQ(client->Get(client->Key("a")).status().code(), Code::kMiss);
  Call(&admin::v1::Admin::Stub::Drop, request, grpc::StatusCode::NOT_FOUND);

  request.set_namespace_fingerprint(client->fingerprint().ToHex());
  EXPECT_EQ(Call(&admin::v1::Admin::Stub::Drop, request).dropped_chunks(), 2u);
  ASSERT_EQ(client->Put(client->Key("d"), "d"), Code::kOk);
  request.set_everything(true);
  EXPECT_GE(Call(&admin::v1::Admin::Stub::Drop, request).dropped_chunks(), 1u);
  EXPECT_EQ(Metric("penstock_chunks"), 0);
}

TEST_F(DaemonAdminTest, WrongRequestsAreRefusedWithTheReason) {
  Start();
  Call(&admin::v1::Admin::Stub::Drop, admin::v1::DropRequest(), grpc::StatusCode::INVALID_ARGUMENT);
  admin::v1::DropRequest request;
  request.set_everything(false);
  Call(&admin::v1::Admin::Stub::Drop, request, grpc::StatusCode::INVALID_ARGUMENT);
  request.set_namespace_fingerprint("not hexadecimal");
  Call(&admin::v1::Admin::Stub::Drop, request, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(error_, HasSubstr("64 hexadecimal digits"));
  admin::v1::SetLogLevelRequest level;
  level.set_level("loud");
  Call(&admin::v1::Admin::Stub::SetLogLevel, level, grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(DaemonAdminTest, TheLogLevelCanBeChanged) {
  Start();
  admin::v1::SetLogLevelRequest request;
  request.set_level("error");
  const auto first = Call(&admin::v1::Admin::Stub::SetLogLevel, request);
  request.set_level(first.previous());
  EXPECT_EQ(Call(&admin::v1::Admin::Stub::SetLogLevel, request).previous(), "error");
}

TEST_F(DaemonAdminTest, ATakenAdminOrMetricsPortFailsTheStartAndNamesItsOwner) {
  DaemonOptions first = SmallDaemon();
  first.metrics = true;
  Start(std::move(first));
  const std::string admin = daemon_->facts().admin_address;
  DaemonOptions options = SmallDaemon();
  options.admin_port = static_cast<uint16_t>(std::stoi(admin.substr(admin.rfind(':') + 1)));
  auto second = Daemon::Start(std::move(options));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kIoError);
  EXPECT_THAT(second.status().message(), HasSubstr(admin));
  EXPECT_THAT(second.status().message(), HasSubstr("pid " + std::to_string(getpid())));

  const std::string metrics = daemon_->facts().metrics_address;
  options = SmallDaemon();
  options.metrics = true;
  options.metrics_port = static_cast<uint16_t>(std::stoi(metrics.substr(metrics.rfind(':') + 1)));
  second = Daemon::Start(std::move(options));
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr(metrics));
}

}  // namespace
}  // namespace penstock
