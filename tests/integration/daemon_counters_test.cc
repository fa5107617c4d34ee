// A scripted workload whose every outcome is known: each figure is compared at each step.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <string>

#include "common/api/penstock_admin.grpc.pb.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/daemon_raw_client.h"

namespace penstock {
namespace {

using testing::ElementsAre;

class DaemonCountersTest : public testing::Test {
 protected:
  void Start() {
    // No self-checks beside the first one, so that the arena is the clients' alone.
    auto daemon = DaemonProcess::Start({.args = {"--health.interval=1h"}});
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    daemon_ = std::move(*daemon);
    auto client = RawClient::Connect(daemon_->address());
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    client_ = std::move(*client);
    expected_.clear();
  }

  ChunkKey Key(int i) const { return client_->Key("chunk" + std::to_string(i)); }
  static size_t Size(int i) { return 1000 + static_cast<size_t>(i); }
  void Put(int i, uint32_t version, bool replace, Code want) {
    const ChunkKey key = Key(i);
    ASSERT_EQ(client_->Put(key, TellingBytes(key, version, Size(i)), replace), want) << i;
  }
  void Expect(const std::string& name, double value) { expected_[name] = value; }

  // Every expected figure is exact, every outcome that is not expected is zero, nothing is
  // negative.
  void Check(const std::string& step) {
    const auto metrics = daemon_->Scrape();
    ASSERT_FALSE(metrics.empty());
    for (const auto& [name, value] : expected_) {
      const auto it = metrics.find(name);
      EXPECT_EQ(it == metrics.end() ? 0 : it->second, value) << name << " after " << step;
    }
    for (const auto& [name, value] : metrics) {
      if (!name.starts_with("penstock_")) continue;  // Of the library behind the endpoint.
      EXPECT_GE(value, 0) << name << " after " << step;
      const bool outcome = name.starts_with("penstock_store_items_total") ||
                           name.starts_with("penstock_fetch_items_total");
      if (outcome && !expected_.contains(name)) {
        EXPECT_EQ(value, 0) << name << " after " << step;
      }
    }
  }

  static std::string Store(const std::string& outcome, const std::string& reason = "") {
    return "penstock_store_items_total{outcome=\"" + outcome + "\",reason=\"" + reason + "\"}";
  }
  static std::string Fetch(const std::string& outcome, const std::string& reason = "") {
    return "penstock_fetch_items_total{outcome=\"" + outcome + "\",reason=\"" + reason + "\"}";
  }

  void DropEverything() {
    const auto admin = admin::v1::Admin::NewStub(
        grpc::CreateChannel(daemon_->admin(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    admin::v1::DropRequest request;
    admin::v1::DropReply reply;
    request.set_everything(true);
    ASSERT_TRUE(admin->Drop(&context, request, &reply).ok());
  }

  void StoreThem();
  void FetchThem();
  void RemoveThem();

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> client_;
  std::map<std::string, double> expected_;
  double bytes_ = 0;  // Committed so far.
};

void DaemonCountersTest::StoreThem() {
  for (int i = 0; i < 1000; ++i) {
    Put(i, 1, false, Code::kOk);
    bytes_ += static_cast<double>(Size(i));
  }
  Expect(Store("committed"), 1000);
  Expect("penstock_store_bytes_total", bytes_);
  Expect("penstock_chunks", 1000);
  Expect("penstock_chunk_bytes", bytes_);
  Check("1000 puts");

  for (int i = 0; i < 20; ++i) Put(i, 2, false, Code::kAlreadyExists);
  Expect(Store("exists"), 20);
  Check("20 puts of what is there");

  for (int i = 0; i < 10; ++i) {
    StoreBuilder store(client_->fingerprint());
    store.Add(client_->Key("wrong" + std::to_string(i)), "some bytes", /*checksum=*/42);
    const uint64_t id = client_->Send(MessageType::kStore, store.Encode());
    ASSERT_TRUE(client_->TakeGrant(id).ok());
    client_->SendBytes(id, 0, 0, "some bytes");
    ASSERT_THAT(*client_->TakeStatuses(id), ElementsAre(Code::kChecksumMismatch));
  }
  Expect(Store("failed", "CHECKSUM_MISMATCH"), 10);
  ASSERT_EQ(client_->Put(client_->Key("huge"), std::string(20u << 20, 'x')), Code::kTooLarge);
  Expect(Store("refused", "TOO_LARGE"), 1);
  Check("wrong and huge ones");
}

void DaemonCountersTest::FetchThem() {
  double fetched = 0;
  for (int i = 0; i < 600; ++i) {
    const auto got = client_->Get(Key(i), Size(i));
    ASSERT_TRUE(got.ok());
    fetched += static_cast<double>(got->size());
  }
  Expect(Fetch("delivered"), 600);
  Expect("penstock_fetch_bytes_total", fetched);
  Check("600 hits");

  std::vector<ChunkKey> absent;
  for (int i = 0; i < 300; ++i) absent.push_back(client_->Key("absent" + std::to_string(i)));
  for (const auto& got : client_->GetMany(absent, 64)) ASSERT_EQ(got.status().code(), Code::kMiss);
  Expect(Fetch("missed"), 300);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(client_->Get(Key(i), Size(i) - 1).status().code(), Code::kBufferTooSmall);
  }
  Expect(Fetch("refused", "BUFFER_TOO_SMALL"), 100);
  Check("300 misses and 100 failed loads");
}

void DaemonCountersTest::RemoveThem() {
  double now = bytes_;
  for (int i = 0; i < 50; ++i) {
    Put(i, 3, true, Code::kOk);
    bytes_ += static_cast<double>(Size(i));
  }
  Expect(Store("committed"), 1050);
  Expect("penstock_store_bytes_total", bytes_);
  Expect("penstock_removed_chunks_total{how=\"replaced\"}", 50);
  Check("50 overwritten");

  std::vector<ChunkKey> victims;
  for (int i = 100; i < 300; ++i) {
    victims.push_back(Key(i));
    now -= static_cast<double>(Size(i));
  }
  EXPECT_THAT(client_->Keys(MessageType::kDrop, victims), testing::Each(Code::kOk));
  EXPECT_THAT(client_->Keys(MessageType::kDrop, victims), testing::Each(Code::kMiss));
  Expect("penstock_removed_chunks_total{how=\"dropped\"}", 200 + 1);  // And the self-check's own.
  Expect("penstock_chunks", 800);
  Expect("penstock_chunk_bytes", now);
  Check("200 deleted");

  DropEverything();
  Expect("penstock_removed_chunks_total{how=\"dropped\"}", 1000 + 1);
  Expect("penstock_chunks", 0);
  Expect("penstock_chunk_bytes", 0);
  Expect("penstock_arena_used_bytes", 0);
  Check("everything cleared");
}

TEST_F(DaemonCountersTest, EveryFigureIsExactAtEveryStep) {
  Start();
  StoreThem();
  FetchThem();
  RemoveThem();
  Expect("penstock_requests_total{request=\"store\",status=\"OK\"}", 1000 + 20 + 10 + 1 + 50);
  Expect("penstock_requests_total{request=\"fetch\",status=\"OK\"}", 600 + 1 + 100);
  Expect("penstock_requests_total{request=\"drop\",status=\"OK\"}", 2);
  Expect("penstock_requests_total{request=\"open_namespace\",status=\"OK\"}", 1);
  Expect("penstock_sessions", 1);
  Expect("penstock_sessions_opened_total", 1);
  Check("all of it");

  daemon_->process().Signal(SIGKILL);
  ASSERT_TRUE(daemon_->process().WaitExit().has_value());
  client_.reset();
  Start();
  Expect("penstock_chunks", 0);
  Expect("penstock_store_bytes_total", 0);
  Expect("penstock_sessions_opened_total", 1);
  Check("a kill and a start");
}

}  // namespace
}  // namespace penstock
