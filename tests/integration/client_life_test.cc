// Whose memory it is, and until when: cancel, deadlines, dropped handles, dying clients, forks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/integration/client_puppet.h"
#include "tests/integration/client_values.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ClientLife : public testing::Test {
 protected:
  // One data stream: what came later on it is through after what came before.
  ClientLife()
      : client_(puppet_.Connect([](ClientOptions& options) {
          options.streams = 1;
          options.reconnect_max = milliseconds(20);
        })),
        ns_(*client_->OpenNamespace(TestDescriptor())) {}

  ChunkKey Key(const std::string& name) { return NamedKey(ns_.fingerprint(), name); }

  OperationPtr FetchOne(Landing& landing, const Deadline& deadline = Soon(), OnDone on_done = {}) {
    return client_->Fetch({ToFetch(ns_, Key("value"), landing)}, {}, deadline, std::move(on_done));
  }
  // Half of the value has come.
  Puppet::Message Begin(const std::string& value) {
    const auto m = puppet_.Next(MessageType::kFetch);
    FetchAnswer answer;
    answer.Add(Key("value"), value);
    puppet_.Reply(m, answer.reply);
    puppet_.Data(m.id, 0, 0, value.substr(0, value.size() / 2));
    return m;
  }
  // The other half comes, and is through when this returns.
  void ComeLate(const Puppet::Message& m, const std::string& value) {
    puppet_.Data(m.id, 0, value.size() / 2, value.substr(value.size() / 2));
    Landing landing(8);
    const OperationPtr later = FetchOne(landing);
    const auto n = puppet_.Next(MessageType::kFetch);
    FetchAnswer answer;
    answer.Add(Key("value"), "12345678");
    puppet_.Reply(n, answer.reply);
    puppet_.Data(n.id, 0, 0, "12345678");
    ASSERT_TRUE(later->Wait(Soon()));
    ASSERT_TRUE(later->items()[0].status.ok()) << later->items()[0].status.ToString();
  }

  Puppet puppet_;
  std::unique_ptr<Client> client_;
  Namespace ns_;
};

TEST_F(ClientLife, AfterCancelNothingWritesTheMemory) {
  const std::string value = Value(2 << 20, 1);
  Landing landing(value.size());
  const OperationPtr fetch = FetchOne(landing);
  const auto m = Begin(value);
  fetch->Cancel();
  ASSERT_TRUE(fetch->Done());
  EXPECT_EQ(fetch->items()[0].status.code(), Code::kCancelled);
  EXPECT_EQ(fetch->status().code(), Code::kCancelled);
  const std::string at_return(landing.view());
  puppet_.Next(MessageType::kCancel);
  ComeLate(m, value);
  EXPECT_EQ(landing.view(), at_return);
  EXPECT_TRUE(landing.GuardsIntact());
}

TEST_F(ClientLife, AfterTheDeadlineNothingWritesTheMemory) {
  const std::string value = Value(2 << 20, 2);
  Landing landing(value.size());
  const MonotonicTime start = MonotonicNow();
  const OperationPtr fetch = FetchOne(landing, Deadline::After(milliseconds(100)));
  const auto m = Begin(value);
  ASSERT_TRUE(fetch->Wait(Soon()));
  EXPECT_LT(MonotonicNow() - start, seconds(5));
  EXPECT_EQ(fetch->items()[0].status.code(), Code::kDeadlineExceeded);
  const std::string at_return(landing.view());
  puppet_.Next(MessageType::kCancel);
  // Somebody had to notice that the daemon was silent; a word from it ends that.
  puppet_.FailItem(m.id, 0, Code::kDeadlineExceeded);
  puppet_.ReplyOk(m);
  while (!puppet_.Quiet()) puppet_.ReplyOk(puppet_.Next(MessageType::kRelease));
  for (OperationPtr ping;;) {
    ping = client_->Ping(Soon());
    if (ping->Done()) continue;
    puppet_.ReplyOk(puppet_.Next(MessageType::kRelease));
    ASSERT_TRUE(ping->Wait(Soon()));
    break;
  }
  ComeLate(m, value);
  EXPECT_EQ(landing.view(), at_return);
  EXPECT_TRUE(landing.GuardsIntact());
}

TEST_F(ClientLife, DroppingTheLastHandleCancelsAndGivesTheMemoryBack) {
  const std::string value = Value(2 << 20, 3);
  Landing landing(value.size());
  OperationPtr fetch = FetchOne(landing);
  const auto m = Begin(value);
  OperationPtr copy = fetch;
  fetch.reset();
  EXPECT_FALSE(copy->Done());
  copy.reset();
  const std::string at_return(landing.view());
  puppet_.Next(MessageType::kCancel);
  ComeLate(m, value);
  EXPECT_EQ(landing.view(), at_return);
  EXPECT_EQ(client_->stats().in_flight, 0u);
}

TEST_F(ClientLife, ADyingClientCancelsWhatIsInFlightAndHandlesStayReadable) {
  const std::string value = Value(2 << 20, 4);
  Landing landing(value.size());
  std::atomic<int> called = 0;
  const OperationPtr fetch = FetchOne(landing, Soon(), [&](Operation& done) {
    EXPECT_TRUE(done.Done());
    ++called;
  });
  Begin(value);
  const OperationPtr match = client_->Match({{ns_, {Key("x")}}}, {}, Soon());
  client_.reset();
  EXPECT_EQ(called, 1);
  ASSERT_TRUE(fetch->Done());
  ASSERT_TRUE(match->Done());
  EXPECT_EQ(fetch->items()[0].status.code(), Code::kCancelled);
  EXPECT_EQ(match->status().code(), Code::kCancelled);
  EXPECT_TRUE(fetch->Wait(Soon()));
  fetch->Cancel();
  EXPECT_TRUE(landing.GuardsIntact());
}

TEST_F(ClientLife, TheCallbackComesOnceWhateverTheOutcome) {
  std::atomic<int> called = 0;
  Mutex mu;
  CondVar changed;
  const auto on_done = [&](Operation& done) {
    EXPECT_TRUE(done.Done());
    MutexLock lock(mu);
    ++called;
    changed.SignalAll();
  };
  const auto wait_for = [&](int count) {
    MutexLock lock(mu);
    while (called < count) changed.Wait(mu);
    EXPECT_EQ(called, count);
  };
  Landing landing(100);
  const OperationPtr cancelled = FetchOne(landing, Soon(), on_done);
  puppet_.Next(MessageType::kFetch);
  cancelled->Cancel();
  puppet_.Next(MessageType::kCancel);
  wait_for(1);
  const OperationPtr missed = FetchOne(landing, Soon(), on_done);
  puppet_.Reply(puppet_.Next(MessageType::kFetch), FetchReply{{{Code::kMiss, 0, {}}}});
  wait_for(2);
  const OperationPtr refused = FetchOne(landing, Deadline::After(seconds(0)), on_done);
  EXPECT_EQ(refused->status().code(), Code::kDeadlineExceeded);
  wait_for(3);
  const OperationPtr empty = client_->Fetch({}, {}, Soon(), on_done);
  wait_for(4);
  ASSERT_TRUE(cancelled->Done() && missed->Done() && empty->Done());
}

TEST_F(ClientLife, CancelInsideACallbackDoesNotWaitForItself) {
  Landing first(100), second(100);
  const OperationPtr other = FetchOne(first);
  puppet_.Next(MessageType::kFetch);
  const OperationPtr fetch = FetchOne(second, Soon(), [other](Operation&) { other->Cancel(); });
  puppet_.Reply(puppet_.Next(MessageType::kFetch), FetchReply{{{Code::kMiss, 0, {}}}});
  ASSERT_TRUE(fetch->Wait(Soon()));
  ASSERT_TRUE(other->Wait(Soon()));
  EXPECT_EQ(other->status().code(), Code::kCancelled);
}

TEST_F(ClientLife, UnregisterWaitsForTheOperationsThatUseTheMemory) {
  const std::string value = Value(1'000, 5);
  Landing landing(value.size());
  const iovec piece = landing.piece();
  const auto registration = client_->Register(piece.iov_base, piece.iov_len);
  ASSERT_TRUE(registration.ok());
  const OperationPtr fetch = FetchOne(landing);
  const auto m = Begin(value);
  std::atomic<bool> unregistered = false;
  std::thread waiting([&] {
    EXPECT_TRUE(client_->Unregister(*registration).ok());
    unregistered = true;
  });
  EXPECT_FALSE(fetch->Done());
  EXPECT_FALSE(unregistered);
  puppet_.Data(m.id, 0, value.size() / 2, value.substr(value.size() / 2));
  ASSERT_TRUE(fetch->Wait(Soon()));
  waiting.join();
  EXPECT_TRUE(fetch->items()[0].status.ok());
  EXPECT_EQ(client_->Unregister(*registration).code(), Code::kInvalidArgument);
  EXPECT_EQ(client_->Register(nullptr, 10).status().code(), Code::kBadBuffer);
  EXPECT_EQ(client_->Register(piece.iov_base, 0).status().code(), Code::kBadBuffer);
}

TEST_F(ClientLife, AForkedChildNeitherHangsNorDisturbsItsParent) {
  Landing landing(1'000);
  OperationPtr fetch = FetchOne(landing);
  puppet_.Next(MessageType::kFetch);
  const pid_t child = fork();
  if (child == 0) {
    fetch->Cancel();
    const bool done = fetch->Wait(Deadline::After(seconds(10)));
    const OperationPtr refused = client_->Ping(Soon());
    bool told = false;
    const OperationPtr matched =
        client_->Match({}, Duration::zero(), Soon(), [&](Operation&) { told = true; });
    const bool refused_ok =
        refused->Done() && refused->status().code() == Code::kInvalidArgument && told;
    fetch.reset();
    client_.reset();
    _exit(!done && refused_ok ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_FALSE(fetch->Done());
  EXPECT_EQ(puppet_.sessions(), 1u);
  fetch->Cancel();
  EXPECT_TRUE(fetch->Done());
}

// Cancel, a dropped handle, a deadline or a lost session at a random moment of a transfer, many
// times over: the memory stays as it was when it was given back.
TEST_F(ClientLife, WhateverEndsATransferWhenever) {
  std::mt19937 random(20261129);
  const std::string value = Value(300'000, 6);
  for (int round = 0; round < 300; ++round) {
    Landing landing(value.size());
    const int end = static_cast<int>(random() % 4);
    OperationPtr fetch = FetchOne(landing);
    const auto m = puppet_.Next(MessageType::kFetch);
    FetchAnswer answer;
    answer.Add(Key("value"), value);
    if (random() % 2 != 0) puppet_.Reply(m, answer.reply);
    std::thread sender([&, parts = random() % 4] {
      for (size_t part = 0; part < parts; ++part) {
        puppet_.Data(m.id, 0, part * 100'000, value.substr(part * 100'000, 100'000));
      }
    });
    if (end == 3) sender.join();
    if (end <= 1) {
      fetch->Cancel();
    } else if (end == 2) {
      fetch.reset();
    } else {
      puppet_.Stop();
      ASSERT_TRUE(fetch->Wait(Soon()));
    }
    const std::string at_return(landing.view());
    if (end == 3) {
      // The fetch may have been whole before: then the client has yet to notice the end.
      const uint64_t connects = client_->stats().connects;
      puppet_.Start();
      const Deadline patience = Soon();
      while (client_->stats().connects == connects && !patience.Expired()) {
        std::this_thread::yield();
      }
      ASSERT_TRUE(client_->WaitConnected(patience));
    } else {
      sender.join();
      puppet_.ReplyOk(m);
    }
    ASSERT_EQ(landing.view(), at_return);
    ASSERT_TRUE(landing.GuardsIntact());
    ASSERT_EQ(client_->stats().in_flight, 0u);
  }
}

}  // namespace
}  // namespace penstock
