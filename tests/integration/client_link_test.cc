// The daemon goes, comes back, freezes, or answers nonsense: what the client does about it.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>

#include "common/transport/socket.h"
#include "tests/integration/client_puppet.h"
#include "tests/integration/client_values.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Duration Elapsed(MonotonicTime since) { return MonotonicNow() - since; }

std::string NowhereAddress() { return "unix:///nowhere/to/be/found"; }

std::unique_ptr<Client> ClientOfNobody(Duration patience) {
  ClientOptions options;
  options.address = NowhereAddress();
  options.patience = patience;
  return std::move(Client::Create(options)).value();
}

TEST(ClientLink, WithoutADaemonOperationsFailWithinThePatienceThenAtOnce) {
  const auto client = ClientOfNobody(milliseconds(300));
  const Namespace ns = *client->OpenNamespace(TestDescriptor());
  const ChunkKey key = NamedKey(ns.fingerprint(), "x");
  MonotonicTime start = MonotonicNow();
  const OperationPtr first = client->Stat(ns, key, Soon());
  ASSERT_TRUE(first->Wait(Soon()));
  EXPECT_EQ(first->status().code(), Code::kDisconnected);
  EXPECT_THAT(first->status().message(), testing::HasSubstr("nowhere"));
  EXPECT_LT(Elapsed(start), seconds(5));
  // From now on nothing waits, and nothing is even hashed.
  start = MonotonicNow();
  for (int i = 0; i < 1'000; ++i) {
    const OperationPtr next = client->Stat(ns, key, Soon());
    ASSERT_TRUE(next->Done());
    ASSERT_EQ(next->status().code(), Code::kDisconnected);
  }
  EXPECT_LT(Elapsed(start), seconds(2));
  EXPECT_FALSE(client->stats().connected);
}

TEST(ClientLink, AnOperationWaitsNoLongerThanItsDeadlineForADaemon) {
  const auto client = ClientOfNobody(seconds(60));
  const OperationPtr ping = client->Ping(Deadline::After(milliseconds(50)));
  ASSERT_TRUE(ping->Wait(Soon()));
  EXPECT_EQ(ping->status().code(), Code::kDeadlineExceeded);
}

TEST(ClientLink, ADaemonThatAcceptsAndSaysNothingIsNamedFromTheFirstMoment) {
  const auto any = Resolve({.host = "127.0.0.1"}, /*passive=*/true);
  ASSERT_TRUE(any.ok());
  const auto mute = ListenOn(any->front(), /*v6_only=*/true, 16);
  ASSERT_TRUE(mute.ok());
  ClientOptions options;
  options.address = ToAddress(*LocalAddress(mute->get())).ToString();
  options.patience = milliseconds(10);
  options.connect_timeout = milliseconds(300);
  const auto client = std::move(Client::Create(options)).value();
  const OperationPtr ping = client->Ping(Soon());
  ASSERT_TRUE(ping->Wait(Soon()));
  EXPECT_EQ(ping->status().code(), Code::kDisconnected);
  EXPECT_THAT(ping->status().message(), testing::HasSubstr(options.address));
  // Then why the attempt failed.
  const Deadline patience = Soon();
  while (client->stats().last_error.find("DEADLINE_EXCEEDED") == std::string::npos) {
    ASSERT_FALSE(patience.Expired()) << client->stats().last_error;
    EXPECT_FALSE(client->WaitConnected(Deadline::After(milliseconds(10))));
  }
}

// Takes all descriptors that a low limit leaves, but `spare`.
class FewDescriptors {
 public:
  explicit FewDescriptors(size_t spare) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit low{64, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
    for (int fd; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken_.push_back(fd);
    for (; spare > 0; --spare) GiveOne();
  }
  ~FewDescriptors() {
    while (!taken_.empty()) GiveOne();
    setrlimit(RLIMIT_NOFILE, &before_);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  void GiveOne() {
    close(taken_.back());
    taken_.pop_back();
  }
  rlimit before_{};
  std::vector<int> taken_;
};

TEST(ClientLink, WithoutDescriptorsTheLimitIsNamedAndWithThemAgainItConnects) {
  Puppet puppet;
  ClientOptions options;
  options.address = puppet.address();
  options.reconnect_max = milliseconds(50);
  {
    const FewDescriptors none(0);
    const auto client = Client::Create(options);
    ASSERT_FALSE(client.ok());
    EXPECT_EQ(client.status().code(), Code::kResourceExhausted);
    EXPECT_THAT(client.status().message(), testing::HasSubstr("RLIMIT_NOFILE is 64"));
  }
  std::unique_ptr<Client> client;
  {
    const FewDescriptors three(3);  // Enough for a client, and for no connection.
    auto created = Client::Create(options);
    ASSERT_TRUE(created.ok()) << created.status().ToString();
    client = std::move(*created);
    const OperationPtr ping = client->Ping(Soon());
    ASSERT_TRUE(ping->Wait(Soon()));
    EXPECT_EQ(ping->status().code(), Code::kDisconnected);
    EXPECT_THAT(ping->status().message(), testing::HasSubstr("RLIMIT_NOFILE is 64"));
  }
  EXPECT_TRUE(client->WaitConnected(Soon())) << client->stats().last_error;
}

TEST(ClientLink, AnOperationThatBeginsBeforeTheDaemonIsThereIsServed) {
  Puppet puppet;
  const std::string address = puppet.address();
  puppet.Stop();
  ClientOptions options;
  options.address = address;
  options.wire = "tcp";
  options.patience = seconds(60);
  const auto client = std::move(Client::Create(options)).value();
  const OperationPtr ping = client->Ping(Soon());
  puppet.Start();
  puppet.ReplyOk(puppet.Next(MessageType::kRelease));
  ASSERT_TRUE(ping->Wait(Soon()));
  EXPECT_TRUE(ping->status().ok()) << ping->status().ToString();
}

TEST(ClientLink, WhatWaitedForTheDaemonComesAfterTheNamespacesInTheOrderOfIds) {
  Puppet puppet;
  const auto client =
      puppet.Connect([](ClientOptions& options) { options.patience = seconds(60); });
  const Namespace ns = *client->OpenNamespace(TestDescriptor());
  const auto unanswered = client->Ping(Soon());
  puppet.Next(MessageType::kRelease);
  puppet.Stop();
  ASSERT_TRUE(unanswered->Wait(Soon()));
  std::string value = Value(100, 1);
  const ChunkKey key = NamedKey(ns.fingerprint(), "x");
  const auto first = client->Store({ToStore(ns, key, value)}, false, Soon());
  const auto cancelled = client->Ping(Soon());
  const auto second = client->Store({ToStore(ns, key, value)}, false, Soon());
  cancelled->Cancel();
  ASSERT_TRUE(cancelled->Wait(Soon()));
  puppet.Start();
  for (const auto& store : {first, second}) {  // The puppet looks at the ids.
    const auto message = puppet.Next(MessageType::kStore);
    EXPECT_EQ(puppet.Received(message.id, 0, value.size()), value);
    puppet.Reply(message, ItemStatuses{{Code::kOk}});
    ASSERT_TRUE(store->Wait(Soon()));
    EXPECT_TRUE(store->items()[0].status.ok()) << store->items()[0].status.ToString();
  }
  EXPECT_EQ(puppet.opened_namespaces(), 2u);
}

TEST(ClientLink, ARestartedDaemonIsFoundNamespacesAreOpenedAgainAndWorkGoesOn) {
  Puppet puppet;
  const auto client = puppet.Connect([](ClientOptions& o) { o.reconnect_max = milliseconds(100); });
  const Namespace ns = *client->OpenNamespace(TestDescriptor());
  const Namespace another = *client->OpenNamespace(TestDescriptor("another"));
  const ChunkKey key = NamedKey(ns.fingerprint(), "x");
  std::set<uint64_t> ids;
  for (int round = 0; round < 20; ++round) {
    const uint64_t incarnation = puppet.incarnation();
    const OperationPtr lost = client->Stat(ns, key, Soon());
    ids.insert(puppet.Next(MessageType::kStat).id);
    puppet.Stop();
    ASSERT_TRUE(lost->Wait(Soon()));
    EXPECT_EQ(lost->status().code(), Code::kDisconnected);
    const MonotonicTime start = MonotonicNow();
    puppet.Start();
    ASSERT_TRUE(client->WaitConnected(Soon()));
    const OperationPtr stat = client->Stat(ns, key, Soon());
    const auto m = puppet.Next(MessageType::kStat);
    ids.insert(m.id);
    puppet.Reply(m, StatReply{.stored_bytes = 5});
    ASSERT_TRUE(stat->Wait(Soon()));
    ASSERT_TRUE(stat->status().ok()) << stat->status().ToString();
    EXPECT_LT(Elapsed(start), seconds(2));
    EXPECT_NE(client->stats().daemon_incarnation, incarnation);
    EXPECT_EQ(client->stats().daemon_incarnation, puppet.incarnation());
  }
  EXPECT_EQ(client->stats().daemon_restarts, 20u);
  EXPECT_EQ(ids.size(), 40u) << "an id was used twice";
  EXPECT_EQ(puppet.opened_namespaces(), 42u);  // Two each time, before the first request.
}

TEST(ClientLink, ANamespaceIsClosedWithItsLastHandleAndNotOpenedAgainAfterwards) {
  Puppet puppet;
  const auto client = puppet.Connect([](ClientOptions& o) { o.reconnect_max = milliseconds(20); });
  Namespace one = *client->OpenNamespace(TestDescriptor());
  Namespace same = *client->OpenNamespace(TestDescriptor());
  const ChunkKey key = NamedKey(one.fingerprint(), "x");
  const OperationPtr stat = client->Stat(one, key, Soon());
  const auto m = puppet.Next(MessageType::kStat);
  one = Namespace();
  same = Namespace();
  // An operation that is not done keeps it, or it would find nothing.
  const Namespace other = *client->OpenNamespace(TestDescriptor("another"));
  const OperationPtr second = client->Stat(other, key, Soon());
  const auto n = puppet.Next(MessageType::kStat);
  EXPECT_EQ(puppet.opened_namespaces(), 2u);
  EXPECT_EQ(puppet.closed_namespaces(), 0u);
  puppet.Reply(m, StatReply{.stored_bytes = 5});
  ASSERT_TRUE(stat->Wait(Soon()));
  EXPECT_TRUE(stat->status().ok()) << stat->status().ToString();
  puppet.WaitClosedNamespaces(1);
  puppet.Reply(n, StatReply{.stored_bytes = 5});
  ASSERT_TRUE(second->Wait(Soon()));

  const OperationPtr lost = client->Stat(other, key, Soon());
  puppet.Next(MessageType::kStat);
  puppet.Stop();
  ASSERT_TRUE(lost->Wait(Soon()));
  puppet.Start();
  ASSERT_TRUE(client->WaitConnected(Soon()));
  const OperationPtr third = client->Stat(other, key, Soon());
  puppet.Reply(puppet.Next(MessageType::kStat), StatReply{.stored_bytes = 5});
  ASSERT_TRUE(third->Wait(Soon()));
  EXPECT_EQ(puppet.opened_namespaces(), 3u);  // Of the other one alone.
}

TEST(ClientLink, AClientMayGoThroughMoreNamespacesThanMayBeOpenAtOnce) {
  Puppet puppet;
  const auto client = puppet.Connect();
  for (int i = 0; i < 5'000; ++i) {
    const auto ns = client->OpenNamespace(TestDescriptor("model-" + std::to_string(i)));
    ASSERT_TRUE(ns.ok()) << i << ": " << ns.status().ToString();
  }
}

TEST(ClientLink, AHandleMayOutliveItsClient) {
  Puppet puppet;
  auto client = puppet.Connect();
  Namespace ns = *client->OpenNamespace(TestDescriptor());
  client.reset();
  EXPECT_EQ(ns.descriptor().model, TestDescriptor().model);
  ns = Namespace();
}

TEST(ClientLink, OperationsOnANamespaceThatTheDaemonHasNoRoomForSaySo) {
  Puppet puppet;
  puppet.AnswerNamespaces(Status(Code::kResourceExhausted, "max_namespaces"));
  const auto client = puppet.Connect();
  const Namespace ns = *client->OpenNamespace(TestDescriptor());
  const ChunkKey key = NamedKey(ns.fingerprint(), "x");
  // The first ones are on their way before the answer is back.
  std::string value = "value";
  const OperationPtr match = client->Match({{.ns = ns, .keys = {key}}}, {}, Soon());
  puppet.Reply(puppet.Next(MessageType::kMatch), MatchReply{});
  ASSERT_TRUE(match->Wait(Soon()));
  EXPECT_EQ(match->status().code(), Code::kResourceExhausted);
  EXPECT_THAT(match->status().message(), testing::HasSubstr("max_namespaces"));
  // From now on nothing is even sent.
  for (const OperationPtr& operation :
       {client->Store({ToStore(ns, key, value)}, false, Soon()),
        client->Fetch({{ns, key, {Piece(value)}}}, {}, Soon()), client->Touch(ns, {key}, Soon())}) {
    ASSERT_TRUE(operation->Wait(Soon()));
    EXPECT_EQ(operation->items()[0].status.code(), Code::kResourceExhausted);
  }
  EXPECT_TRUE(puppet.Quiet());
  // Once there is room it works by itself.
  puppet.AnswerNamespaces(Status::Ok());
  const Deadline deadline = Soon();
  OperationPtr stat;
  do {
    ASSERT_FALSE(deadline.Expired());
    stat = client->Stat(ns, key, Soon());
    if (!stat->Done()) puppet.Reply(puppet.Next(MessageType::kStat), StatReply{.stored_bytes = 5});
    ASSERT_TRUE(stat->Wait(Soon()));
    std::this_thread::yield();
  } while (!stat->status().ok());
}

TEST(ClientLink, ALostSessionKeepsWhatWasDeliveredAndNamesTheRest) {
  Puppet puppet;
  const auto client = puppet.Connect([](ClientOptions& o) { o.streams = 1; });
  const Namespace ns = *client->OpenNamespace(TestDescriptor());
  const ChunkKey a = NamedKey(ns.fingerprint(), "a"), b = NamedKey(ns.fingerprint(), "b");
  const std::string value = Value(1'000, 1);
  Landing la(value.size()), lb(value.size());
  const OperationPtr fetch = client->Fetch({ToFetch(ns, a, la), ToFetch(ns, b, lb)}, {}, Soon());
  const auto m = puppet.Next(MessageType::kFetch);
  FetchAnswer answer;
  answer.Add(a, value);
  answer.Add(b, value);
  puppet.Reply(m, answer.reply);
  puppet.Data(m.id, 0, 0, value);
  puppet.Data(m.id, 1, 0, value.substr(0, 500));
  // What comes later on the only data stream shows that this is through.
  Landing lc(value.size());
  const OperationPtr later = client->Fetch({ToFetch(ns, a, lc)}, {}, Soon());
  const auto n = puppet.Next(MessageType::kFetch);
  FetchAnswer only;
  only.Add(a, value);
  puppet.Reply(n, only.reply);
  puppet.Data(n.id, 0, 0, value);
  ASSERT_TRUE(later->Wait(Soon()));
  EXPECT_TRUE(later->items()[0].status.ok());
  puppet.Stop();
  ASSERT_TRUE(fetch->Wait(Soon()));
  EXPECT_EQ(fetch->status().code(), Code::kDisconnected);
  EXPECT_TRUE(fetch->items()[0].status.ok());
  EXPECT_EQ(fetch->items()[1].status.code(), Code::kDisconnected);
}

TEST(ClientLink, ASilentDaemonCostsOneDeadlineNotEveryOne) {
  Puppet puppet;
  const auto client = puppet.Connect([](ClientOptions& o) { o.patience = milliseconds(50); });
  const OperationPtr first = client->Ping(Deadline::After(milliseconds(200)));
  const auto unanswered = puppet.Next(MessageType::kRelease);
  ASSERT_TRUE(first->Wait(Soon()));
  EXPECT_EQ(first->status().code(), Code::kDeadlineExceeded);
  puppet.Next(MessageType::kRelease);  // Asked whether it is there.
  const OperationPtr second = client->Ping(Soon());
  ASSERT_TRUE(second->Done());
  EXPECT_EQ(second->status().code(), Code::kDisconnected);
  // It thaws.
  puppet.Next(MessageType::kCancel);
  puppet.ReplyOk(unanswered);
  OperationPtr third;
  do {
    third = client->Ping(Soon());
  } while (third->Done());
  puppet.ReplyOk(puppet.Next(MessageType::kRelease));
  ASSERT_TRUE(third->Wait(Soon()));
  EXPECT_TRUE(third->status().ok());
  EXPECT_EQ(puppet.sessions(), 1u);
}

TEST(ClientLink, AReplyThatDoesNotParseEndsTheSessionAndTheClientComesBack) {
  Puppet puppet;
  const auto client = puppet.Connect();
  const OperationPtr ping = client->Ping(Soon());
  puppet.Send(MessageType::kReply, puppet.Next(MessageType::kRelease).id, {std::byte{1}});
  ASSERT_TRUE(ping->Wait(Soon()));
  EXPECT_EQ(ping->status().code(), Code::kDisconnected);
  ASSERT_TRUE(client->WaitConnected(Soon()));
  const OperationPtr again = client->Ping(Soon());
  puppet.ReplyOk(puppet.Next(MessageType::kRelease));
  ASSERT_TRUE(again->Wait(Soon()));
  EXPECT_TRUE(again->status().ok());
}

TEST(ClientLink, ADaemonWhoseSessionsDieAtOnceIsNotAskedForTheNextWithoutAPause) {
  Puppet puppet;
  const auto client = puppet.Connect([](ClientOptions& options) {
    options.reconnect_min = options.reconnect_max = milliseconds(200);
    options.patience = seconds(60);
  });
  constexpr int kRounds = 4;
  const MonotonicTime start = MonotonicNow();
  for (int i = 0; i < kRounds; ++i) {
    const OperationPtr ping = client->Ping(Soon());
    puppet.Send(MessageType::kReply, puppet.Next(MessageType::kRelease).id, {std::byte{1}});
    ASSERT_TRUE(ping->Wait(Soon()));
  }
  // Each pause is shortened by half at most, and the last session has none before its end.
  EXPECT_GE(Elapsed(start), (kRounds - 1) * milliseconds(100));
}

TEST(ClientLink, TheDaemonsWindowIsKept) {
  Puppet puppet({.max_in_flight = 3});
  const auto client = puppet.Connect();
  std::vector<OperationPtr> pings;
  for (int i = 0; i < 10; ++i) pings.push_back(client->Ping(Soon()));
  std::vector<Puppet::Message> open;
  for (int i = 0; i < 3; ++i) open.push_back(puppet.Next(MessageType::kRelease));
  // One more may come for each that is answered, and only then.
  for (size_t answered = 0; answered < 7; ++answered) {
    EXPECT_TRUE(puppet.Quiet());
    puppet.ReplyOk(open[answered]);
    open.push_back(puppet.Next(MessageType::kRelease));
  }
  for (size_t i = 7; i < 10; ++i) puppet.ReplyOk(open[i]);
  for (const auto& ping : pings) EXPECT_TRUE(ping->Wait(Soon()));
}

// The daemon counts a FETCH until its bytes are gone, and refuses what comes too early.
TEST(ClientLink, AFetchKeepsItsPlaceInTheWindowUntilItsBytesAreThere) {
  Puppet puppet({.max_in_flight = 2});
  const auto client = puppet.Connect();
  const Namespace ns = *client->OpenNamespace(TestDescriptor());
  const std::string value = Value(1'000, 1);
  std::vector<std::unique_ptr<Landing>> landings;
  std::vector<OperationPtr> fetches;
  for (int i = 0; i < 4; ++i) {
    landings.push_back(std::make_unique<Landing>(value.size()));
    const ChunkKey key = NamedKey(ns.fingerprint(), "value");
    fetches.push_back(client->Fetch({ToFetch(ns, key, *landings.back())}, {}, Soon()));
  }
  FetchAnswer answer;
  answer.Add(NamedKey(ns.fingerprint(), "value"), value);
  const auto slow = puppet.Next(MessageType::kFetch);
  const auto quick = puppet.Next(MessageType::kFetch);
  puppet.Reply(slow, answer.reply);
  puppet.Reply(quick, answer.reply);
  puppet.Data(quick.id, 0, 0, value);
  ASSERT_TRUE(fetches[1]->Wait(Soon()));  // Both answers have been read.
  // The quick one's place is taken; the slow one's is not free before the client gives it up.
  const auto third = puppet.Next(MessageType::kFetch);
  fetches[0]->Cancel();
  EXPECT_EQ(puppet.Next(MessageType::kCancel).id, slow.id);
  const auto fourth = puppet.Next(MessageType::kFetch);
  for (const auto& message : {third, fourth}) puppet.Refuse(message, Status(Code::kUnimplemented));
  for (const auto& fetch : fetches) EXPECT_TRUE(fetch->Wait(Soon()));
}

TEST(ClientLink, OperationsBeyondTheLimitAreBusyAtOnce) {
  Puppet puppet;
  const auto client = puppet.Connect([](ClientOptions& o) { o.max_in_flight = 4; });
  std::vector<OperationPtr> pings;
  for (int i = 0; i < 4; ++i) pings.push_back(client->Ping(Soon()));
  EXPECT_EQ(client->stats().in_flight, 4u);
  const OperationPtr fifth = client->Ping(Soon());
  ASSERT_TRUE(fifth->Done());
  EXPECT_EQ(fifth->status().code(), Code::kBusy);
  for (int i = 0; i < 4; ++i) puppet.ReplyOk(puppet.Next(MessageType::kRelease));
  for (const auto& ping : pings) EXPECT_TRUE(ping->Wait(Soon()));
  const OperationPtr sixth = client->Ping(Soon());
  puppet.ReplyOk(puppet.Next(MessageType::kRelease));
  EXPECT_TRUE(sixth->Wait(Soon()));
  EXPECT_TRUE(sixth->status().ok());
}

TEST(ClientLink, AReservationThatComesTooLateIsGivenBack) {
  Puppet puppet;
  const auto client = puppet.Connect();
  const Namespace ns = *client->OpenNamespace(TestDescriptor());
  const OperationPtr match =
      client->Match({{ns, {NamedKey(ns.fingerprint(), "x")}}}, seconds(10), Soon());
  const auto m = puppet.Next(MessageType::kMatch);
  match->Cancel();
  EXPECT_EQ(match->status().code(), Code::kCancelled);
  puppet.Next(MessageType::kCancel);
  puppet.Reply(m, MatchReply{.matched_chunks = 1, .reservation = 4711});
  const auto release = ReleaseRequest::Decode(puppet.Next(MessageType::kRelease).body);
  ASSERT_TRUE(release.ok());
  EXPECT_EQ(release->reservation, 4711u);
}

TEST(ClientLink, ManyThreadsShareOneSession) {
  Puppet puppet;
  const auto client = puppet.Connect();
  std::atomic<int> failed = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const OperationPtr ping = client->Ping(Soon());
        if (!ping->Wait(Soon()) || !ping->status().ok()) ++failed;
      }
    });
  }
  for (int i = 0; i < 16 * 50; ++i) puppet.ReplyOk(puppet.Next(MessageType::kRelease));
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(puppet.sessions(), 1u);
}

}  // namespace
}  // namespace penstock
