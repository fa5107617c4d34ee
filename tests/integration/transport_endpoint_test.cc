// Listening and dialing: which errors they give, and what they leave behind.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>

#include "common/transport/socket.h"
#include "tests/integration/raw_peer.h"
#include "tests/integration/transport_peers.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Endpoints {
  std::unique_ptr<EventLoop> loop = std::move(EventLoop::Start("endpoint")).value();
  RecordingEvents events;  // Of every session that comes.

  Result<std::unique_ptr<Listener>> Listen(const std::vector<std::string>& addresses) {
    ListenOptions options;
    for (const std::string& address : addresses) {
      options.addresses.push_back(Address::Parse(address).value());
    }
    return Listener::Start(options, {loop.get()}, [this](Session&) { return Forwarding(events); });
  }
};

TEST(Dial, ARefusedConnectionNamesTheAddress) {
  Endpoints ends;
  Address address;
  {
    auto listener = ends.Listen({"tcp://127.0.0.1:0"});
    ASSERT_TRUE(listener.ok());
    address = (*listener)->addresses()[0];
  }
  EXPECT_NE(address.port, 0);
  RecordingEvents events;
  const Status status = DialAndWait(*ends.loop, {.address = address}, events).status();
  EXPECT_EQ(status.code(), Code::kDisconnected);
  EXPECT_NE(status.message().find(address.ToString()), std::string::npos) << status.ToString();
  EXPECT_NE(status.message().find("refused"), std::string::npos) << status.ToString();
}

TEST(Dial, ASocketFileThatIsNotThereIsNamed) {
  Endpoints ends;
  TestDirectory directory;
  RecordingEvents events;
  const Address address = Address::Parse(directory.Resolve("unix")).value();
  const Status status = DialAndWait(*ends.loop, {.address = address}, events).status();
  EXPECT_EQ(status.code(), Code::kDisconnected);
  EXPECT_NE(status.message().find(directory.path()), std::string::npos);
}

TEST(Dial, ADaemonThatDoesNotAnswerIsGivenUpInTime) {
  Endpoints ends;
  const auto silent = ListenOn(Resolve(Address::Parse("127.0.0.1:0").value(), true)->front(),
                               /*v6_only=*/true, 5);
  ASSERT_TRUE(silent.ok());
  const Address address = ToAddress(*LocalAddress(silent->get()));
  RecordingEvents events;
  const MonotonicTime start = MonotonicNow();
  const Status status =
      DialAndWait(*ends.loop, {.address = address}, events, milliseconds(200)).status();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.ToString();
  EXPECT_GE(MonotonicNow() - start, milliseconds(200));
}

TEST(Dial, ADaemonThatHangsUpIsDisconnected) {
  Endpoints ends;
  const auto listening = ListenOn(Resolve(Address::Parse("127.0.0.1:0").value(), true)->front(),
                                  /*v6_only=*/true, 5);
  ASSERT_TRUE(listening.ok());
  RecordingEvents events;
  std::promise<Result<Session*>> dialed;
  Dial(*ends.loop, {.address = ToAddress(*LocalAddress(listening->get()))},
       Deadline::After(seconds(20)), events,
       [&](Result<Session*> result) { dialed.set_value(std::move(result)); });
  pollfd ready{listening->get(), POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 20000), 1);
  RawPeer daemon(UniqueFd(accept(listening->get(), nullptr, nullptr)));
  daemon.Close();
  EXPECT_EQ(dialed.get_future().get().status().code(), Code::kDisconnected);
}

TEST(Dial, NamesAreLookedUpAndEveryAddressTried) {
  Endpoints ends;
  auto listener = ends.Listen({"tcp://127.0.0.1:0"});
  ASSERT_TRUE(listener.ok());
  // "localhost" may be ::1 first, where nobody listens.
  Address address{Address::Kind::kTcp, "localhost", (*listener)->addresses()[0].port};
  RecordingEvents events;
  const auto session = DialAndWait(*ends.loop, {.address = address}, events);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  ends.loop->Run([&] { (*session)->Close(Status::Ok()); });
  EXPECT_FALSE(events.WaitClosed().ok());
  address.host = "no-such-host.invalid";
  RecordingEvents others;
  const Status status = DialAndWait(*ends.loop, {.address = address}, others, seconds(5)).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("no-such-host.invalid"), std::string::npos);
}

TEST(Dial, AnUnknownWireIsAnInvalidArgument) {
  Endpoints ends;
  RecordingEvents events;
  DialOptions options{.address = Address::Parse("127.0.0.1:1").value(), .wire = "rdma"};
  EXPECT_EQ(DialAndWait(*ends.loop, options, events).status().code(), Code::kInvalidArgument);
}

TEST(Listener, ListensOnSeveralAddressesAtOnce) {
  Endpoints ends;
  TestDirectory directory;
  auto listener = ends.Listen({"tcp://127.0.0.1:0", "tcp://[::1]:0", directory.Resolve("unix")});
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  ASSERT_EQ((*listener)->addresses().size(), 3u);
  for (const Address& address : (*listener)->addresses()) {
    RecordingEvents events;
    const auto session = DialAndWait(*ends.loop, {.address = address}, events);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    ends.loop->Run([&] { (*session)->Close(Status::Ok()); });
    EXPECT_FALSE(events.WaitClosed().ok());
  }
}

TEST(Listener, TheV6WildcardTakesIPv4Too) {
  Endpoints ends;
  auto listener = ends.Listen({"tcp://[::]:0"});
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  for (const char* host : {"127.0.0.1", "::1"}) {
    const Address address{Address::Kind::kTcp, host, (*listener)->addresses()[0].port};
    RecordingEvents events;
    const auto session = DialAndWait(*ends.loop, {.address = address}, events);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    ends.loop->Run([&] { (*session)->Close(Status::Ok()); });
    EXPECT_FALSE(events.WaitClosed().ok());
  }
}

TEST(Listener, AnAddressInUseIsReportedWithItsOwner) {
  Endpoints ends;
  TestDirectory directory;
  const std::string self = "pid " + std::to_string(getpid());
  for (const std::string& text : {std::string("tcp://127.0.0.1:0"), directory.Resolve("unix")}) {
    auto first = ends.Listen({text});
    ASSERT_TRUE(first.ok());
    const std::string taken = (*first)->addresses()[0].ToString();
    const Status status = ends.Listen({taken}).status();
    EXPECT_EQ(status.code(), Code::kIoError) << taken;
    EXPECT_NE(status.message().find("in use"), std::string::npos) << status.ToString();
    EXPECT_NE(status.message().find(self), std::string::npos) << status.ToString();
    // The failed one has not taken the first one's socket file away.
    RecordingEvents events;
    const auto session = DialAndWait(*ends.loop, {.address = (*first)->addresses()[0]}, events);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    ends.loop->Run([&] { (*session)->Close(Status::Ok()); });
    EXPECT_FALSE(events.WaitClosed().ok());
  }
}

TEST(Listener, ASocketFileThatADeadDaemonLeftIsReplaced) {
  Endpoints ends;
  TestDirectory directory;
  const std::string text = directory.Resolve("unix");
  {
    const auto dead = ListenOn(Resolve(Address::Parse(text).value(), true)->front(), false, 1);
    ASSERT_TRUE(dead.ok());
  }
  EXPECT_FALSE(std::filesystem::is_empty(directory.path()));
  auto listener = ends.Listen({text});
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  (*listener)->Stop(Status::Ok());
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Listener, AFileThatIsNoSocketIsLeftAlone) {
  Endpoints ends;
  TestDirectory directory;
  const std::string path = directory.path() + "/socket";
  fclose(fopen(path.c_str(), "w"));
  EXPECT_EQ(ends.Listen({"unix://" + path}).status().code(), Code::kIoError);
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST(Listener, AnAddressThatIsNotOursIsAnError) {
  Endpoints ends;
  EXPECT_EQ(ends.Listen({"tcp://203.0.113.1:0"}).status().code(), Code::kIoError);
  EXPECT_EQ(ends.Listen({"tcp://no-such-host.invalid:0"}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ends.Listen({}).status().code(), Code::kInvalidArgument);
}

uint64_t LoopCpuMillis(EventLoop& loop) {
  timespec used{};
  loop.Run([&] { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used); });
  return static_cast<uint64_t>(used.tv_sec) * 1000 + static_cast<uint64_t>(used.tv_nsec) / 1000000;
}

TEST(Listener, WithoutDescriptorsItWaitsInsteadOfSpinningAndThenGoesOn) {
  Mutex mu;
  std::vector<Status> refused;
  Peers::Options options;
  options.edit_listen = [&](ListenOptions& listen) {
    listen.on_refused = [&](const Status& why) {
      MutexLock lock(mu);
      refused.push_back(why);
    };
  };
  Peers peers({"TcpV4", "tcp", "tcp://127.0.0.1:0"}, options);
  const auto to = Resolve(peers.listener().addresses()[0], false)->front();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 20; ++i) {
    clients.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(clients.back().get()) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (const UniqueFd& client : clients) {
    EXPECT_EQ(connect(client.get(), to.get(), to.length), 0);
  }
  const uint64_t cpu = LoopCpuMillis(peers.server_loop());
  std::promise<void> later;
  peers.server_loop().Run(
      [&] { peers.server_loop().After(milliseconds(700), [&] { later.set_value(); }); });
  later.get_future().wait();
  EXPECT_LT(LoopCpuMillis(peers.server_loop()) - cpu, 100u);
  {
    MutexLock lock(mu);
    ASSERT_FALSE(refused.empty());
    EXPECT_LE(refused.size(), 10u);
    EXPECT_EQ(refused[0].code(), Code::kResourceExhausted);
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  clients.clear();
  RecordingEvents events;
  const auto session = peers.DialMore(events, peers.dial_options());
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  peers.client_loop().Run([&] { (*session)->Close(Status::Ok()); });
  EXPECT_FALSE(events.WaitClosed().ok());
}

TEST(Listener, ARefusedSessionTellsTheClient) {
  Endpoints ends;
  ListenOptions options;
  options.addresses = {Address::Parse("127.0.0.1:0").value()};
  auto listener = Listener::Start(options, {ends.loop.get()}, [](Session& session) {
    session.SendMessage(MessageType::kReply, 1, {});  // Never arrives.
    return nullptr;
  });
  ASSERT_TRUE(listener.ok());
  RecordingEvents events;
  const auto session = DialAndWait(*ends.loop, {.address = (*listener)->addresses()[0]}, events);
  EXPECT_EQ(session.status().code(), Code::kPermissionDenied);
  EXPECT_EQ(events.closed, 0);
  EXPECT_TRUE(events.messages.empty());
}

TEST(Listener, MessagesSentWhileTheSessionIsMadeComeAfterHello) {
  Endpoints ends;
  ListenOptions options;
  options.addresses = {Address::Parse("127.0.0.1:0").value()};
  auto listener = Listener::Start(options, {ends.loop.get()}, [&](Session& session) {
    session.SendMessage(MessageType::kReply, 8, AsBytes("welcome"));
    return Forwarding(ends.events);
  });
  ASSERT_TRUE(listener.ok());
  RecordingEvents events;
  const auto session = DialAndWait(*ends.loop, {.address = (*listener)->addresses()[0]}, events);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  ASSERT_TRUE(events.WaitFor([&] { return events.messages.size() == 1; }));
  EXPECT_EQ(events.messages[0].body, "welcome");
  ends.loop->Run([&] { (*session)->Close(Status::Ok()); });
  EXPECT_FALSE(events.WaitClosed().ok());
}

// One session moves bulk without end; another, on the same two loops, asks and is answered. What
// passes between two answers is bounded, however fast or slow the machine is.
TEST(Fairness, ABusySessionLetsSmallMessagesOfOthersBy) {
  // All that the busy session uses outlives it.
  GuardedBuffer source(64u << 20);
  GuardedBuffer destination(64u << 20);
  std::atomic<uint64_t> moved{0};
  std::atomic<bool> stop{false};
  std::function<void(uint32_t)> push;
  Peers peers({"TcpV4", "tcp", "tcp://127.0.0.1:0"});
  peers.OnServer([&](Session&) {
    peers.server_events.locate = [&](uint64_t, const DataHeader& header, Pieces& pieces) {
      pieces.push_back({destination.data() + header.offset, header.length});
      moved += header.length;
      return true;
    };
  });
  RecordingEvents other;
  const auto session = peers.DialMore(other, peers.dial_options());
  ASSERT_TRUE(session.ok());
  std::promise<void> all;
  int answers = 0;
  constexpr int kRounds = 100;
  other.on_message = [&](MessageType, uint64_t, ByteSpan) {
    if (++answers == kRounds) return all.set_value();
    (*session)->SendMessage(MessageType::kTouch, 1, {});
  };
  peers.OnServer([&](Session&) {
    peers.other_server_events.on_message = [&](MessageType, uint64_t id, ByteSpan) {
      peers.last_server()->SendMessage(MessageType::kReply, id, {});
    };
  });
  push = [&](uint32_t item) {
    if (stop) return;
    const iovec payload = source.vec();
    peers.client()->SendData(1, {.item = item, .length = source.size()}, {&payload, 1},
                             [&push, item](const Status& s) {
                               if (s.ok()) push(item + 1);
                             });
  };
  peers.OnClient([&](Session&) {
    push(0);
    push(1);
  });
  peers.client_loop().Run([&] { (*session)->SendMessage(MessageType::kTouch, 1, {}); });
  all.get_future().wait();
  stop = true;
  EXPECT_LT(moved / kRounds, 48u << 20) << "bytes of the busy session for one answer of the other";
  peers.client_loop().Run([&] { (*session)->Close(Status::Ok()); });
  EXPECT_FALSE(other.WaitClosed().ok());
}

}  // namespace
}  // namespace penstock
