// What old, new, broken and hostile peers get: a named error, counted, and nobody else suffers.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <future>
#include <limits>
#include <random>
#include <set>

#include "common/transport/data_stream.h"
#include "tests/integration/raw_peer.h"
#include "tests/integration/transport_peers.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;

class TransportHostile : public testing::TestWithParam<Road> {
 protected:
  // A listener with one good session, and a record of who was refused.
  std::unique_ptr<Peers> Start(Peers::Options options = {}) {
    options.edit_listen = [this, edit = options.edit_listen](ListenOptions& listen) {
      listen.on_refused = [this](const Status& why) {
        MutexLock lock(mu_);
        refused_.push_back(why);
        changed_.SignalAll();
      };
      if (edit) edit(listen);
    };
    auto peers = std::make_unique<Peers>(GetParam(), options);
    peers->server_events.on_message = [p = peers.get()](MessageType, uint64_t id, ByteSpan) {
      p->server()->SendMessage(MessageType::kReply, id, {});
    };
    return peers;
  }

  Status WaitRefused(size_t which = 0) {
    const auto until = MonotonicNow() + std::chrono::seconds(20);
    MutexLock lock(mu_);
    while (refused_.size() <= which && changed_.WaitUntil(mu_, until)) {
    }
    EXPECT_GT(refused_.size(), which) << "nobody was refused";
    return refused_.size() > which ? refused_[which] : Status();
  }
  size_t refused() {
    MutexLock lock(mu_);
    return refused_.size();
  }

  // The good session still gets its answers.
  static void ExpectWell(Peers& peers) {
    size_t before = 0;
    peers.client_events.With([&] { before = peers.client_events.messages.size(); });
    peers.OnClient([](Session& session) { session.SendMessage(MessageType::kTouch, 5, {}); });
    EXPECT_TRUE(
        peers.client_events.WaitFor([&] { return peers.client_events.messages.size() > before; }));
  }

  // A raw peer that is past HELLO and has attached `streams`.
  struct RawSession {
    std::unique_ptr<RawPeer> control;
    std::vector<std::unique_ptr<RawPeer>> streams;
    HelloReply reply;
  };
  static RawSession Join(Peers& peers, uint32_t streams = 1) {
    const Address address = peers.listener().addresses()[0];
    RawSession session;
    session.control = std::make_unique<RawPeer>(address);
    session.reply = session.control->SayHello(streams);
    EXPECT_EQ(session.reply.status, 0) << session.reply.message;
    for (uint32_t i = 0; i < streams; ++i) {
      session.streams.push_back(std::make_unique<RawPeer>(address));
      session.streams[i]->Send(MessageType::kAttach, 0, EncodeAttach({session.reply.token, i}));
      const auto answer = session.streams[i]->Read();
      EXPECT_TRUE(answer && ParseVerdict(answer->body)->status == 0);
    }
    return session;
  }
  // Asks and asks and never reads: PONGs pile up.
  static void AskWithoutReading(RawSession& session) {
    const auto ping = Frame(MessageType::kPing, 1, {});
    std::vector<std::byte> many;
    for (int i = 0; i < 2000; ++i) many.insert(many.end(), ping.begin(), ping.end());
    while (session.control->SendSome(many)) {
    }
  }

  Mutex mu_;
  CondVar changed_;
  std::vector<Status> refused_ ABSL_GUARDED_BY(mu_);
};

TEST_P(TransportHostile, GarbageOnThePortIsClosedAndCounted) {
  const auto peers = Start();
  const std::string garbage[] = {"GET / HTTP/1.1\r\nHost: penstock\r\n\r\n",
                                 std::string(1000, '\0'), std::string(100000, '\xff')};
  for (size_t i = 0; i < std::size(garbage); ++i) {
    RawPeer raw(peers->listener().addresses()[0]);
    raw.Send(AsBytes(garbage[i]));
    EXPECT_TRUE(raw.ReadToEnd());
    EXPECT_EQ(WaitRefused(i).code(), Code::kCorruptMessage);
  }
  ExpectWell(*peers);
}

TEST_P(TransportHostile, APeerThatSaysNothingOrHalfIsDroppedInTime) {
  Peers::Options options;
  options.server_limits.hello_timeout = milliseconds(300);
  const auto peers = Start(options);
  RawPeer silent(peers->listener().addresses()[0]);
  RawPeer half(peers->listener().addresses()[0]);
  const auto hello = Frame(MessageType::kHello, 0, EncodeHello(Hello()));
  half.Send(ByteSpan(hello).first(40));
  RawPeer gone(peers->listener().addresses()[0]);
  gone.Send(ByteSpan(hello).first(20));
  gone.HalfClose();
  EXPECT_TRUE(silent.ReadToEnd());
  EXPECT_TRUE(half.ReadToEnd());
  EXPECT_TRUE(gone.ReadToEnd());
  std::multiset<Code> codes;
  for (size_t i = 0; i < 3; ++i) codes.insert(WaitRefused(i).code());
  EXPECT_EQ(codes, (std::multiset<Code>{Code::kDeadlineExceeded, Code::kDeadlineExceeded,
                                        Code::kDisconnected}));
  ExpectWell(*peers);
}

TEST_P(TransportHostile, AClientOfTheFutureIsToldBothVersions) {
  const auto peers = Start();
  RawPeer raw(peers->listener().addresses()[0]);
  Hello hello;
  hello.version_min = 9;
  hello.version_max = 12;
  hello.software = "penstock 9.9";
  hello.wires = {"tcp"};
  raw.Send(MessageType::kHello, 0, EncodeHello(hello));
  const auto message = raw.Read();
  ASSERT_TRUE(message);
  const auto reply = ParseHelloReply(message->body);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(CodeFromWire(reply->status), Code::kVersionSkew);
  EXPECT_NE(reply->message.find("speaks protocol versions 1 to 1"), std::string::npos);
  EXPECT_NE(reply->message.find("penstock 9.9 speaks 9 to 12"), std::string::npos);
  EXPECT_TRUE(raw.ReadToEnd());
  EXPECT_EQ(WaitRefused().code(), Code::kVersionSkew);
  EXPECT_NE(WaitRefused().message().find("9 to 12"), std::string::npos);
}

TEST_P(TransportHostile, ANewerClientThatStillSpeaksOurVersionIsWelcome) {
  const auto peers = Start();
  RawPeer raw(peers->listener().addresses()[0]);
  Hello hello;
  hello.version_max = 99;
  hello.wires = {"rdma2", "tcp"};
  auto body = EncodeHello(hello);
  // A fixed part eight bytes longer, and another string at the end.
  uint32_t fixed = 0;
  std::memcpy(&fixed, body.data(), 4);
  body.insert(body.begin() + fixed, 8, std::byte{0xaa});
  fixed += 8;
  std::memcpy(body.data(), &fixed, 4);
  body.insert(body.end(), {std::byte{2}, std::byte{0}, std::byte{'x'}, std::byte{'y'}});
  raw.Send(MessageType::kHello, 0, body);
  const auto message = raw.Read();
  ASSERT_TRUE(message);
  const auto reply = ParseHelloReply(message->body);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status, 0) << reply->message;
  EXPECT_EQ(reply->version, kProtocolVersion);
  EXPECT_EQ(reply->wire, "tcp");
}

TEST_P(TransportHostile, ADaemonOfTheFutureIsRefusedByTheClientWithBothVersions) {
  // A daemon that only speaks 7, and answers whatever it gets.
  TestDirectory directory;
  const auto address = Address::Parse(directory.Resolve(GetParam().address)).value();
  const auto listening = ListenOn(Resolve(address, true)->front(), true, 5);
  ASSERT_TRUE(listening.ok());
  const Address real = ToAddress(*LocalAddress(listening->get()));
  const auto loop = std::move(EventLoop::Start("client")).value();
  RecordingEvents events;
  std::promise<Result<Session*>> dialed;
  Dial(*loop, {.address = real, .wire = "tcp"}, Deadline::After(std::chrono::seconds(20)), events,
       [&](Result<Session*> result) { dialed.set_value(std::move(result)); });
  pollfd ready{listening->get(), POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 20000), 1);
  RawPeer daemon(UniqueFd(accept(listening->get(), nullptr, nullptr)));
  ASSERT_TRUE(daemon.Read());
  HelloReply reply;
  reply.version_min = reply.version_max = reply.version = 7;
  reply.software = "penstock 7.0";
  reply.wire = "tcp";
  reply.streams = 1;
  daemon.Send(MessageType::kHelloReply, 0, EncodeHelloReply(reply));
  const auto result = dialed.get_future().get();
  EXPECT_EQ(result.status().code(), Code::kVersionSkew);
  EXPECT_NE(result.status().message().find("speaks protocol versions 1 to 1"), std::string::npos);
  EXPECT_NE(result.status().message().find("penstock 7.0 speaks 7 to 7"), std::string::npos);
  EXPECT_TRUE(daemon.ReadToEnd());
  EXPECT_EQ(events.closed, 0) << "there was no session";
}

TEST_P(TransportHostile, AClientWithoutACommonWireIsToldWhatThereIs) {
  const auto peers = Start();
  RawPeer raw(peers->listener().addresses()[0]);
  Hello hello;
  hello.wires = {"pigeon"};
  raw.Send(MessageType::kHello, 0, EncodeHello(hello));
  const auto reply = ParseHelloReply(raw.Read()->body);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(CodeFromWire(reply->status), Code::kUnimplemented);
  EXPECT_NE(reply->message.find("pigeon"), std::string::npos);
  EXPECT_EQ(WaitRefused().code(), Code::kUnimplemented);
}

TEST_P(TransportHostile, OnlyHelloAndAttachBeginAConnection) {
  const auto peers = Start();
  size_t refusals = 0;
  for (int type = 0; type < 256; ++type) {
    if (type == 1 || type == 3) continue;
    RawPeer raw(peers->listener().addresses()[0]);
    raw.Send(static_cast<MessageType>(type), 1, AsBytes("body"));
    EXPECT_TRUE(raw.ReadToEnd()) << type;
    EXPECT_EQ(WaitRefused(refusals++).code(), Code::kCorruptMessage);
  }
  ExpectWell(*peers);
}

TEST_P(TransportHostile, AttachNeedsTheTokenAndAFreePlace) {
  const auto peers = Start();
  auto session = Join(*peers, 2);
  const auto attach = [&](const SessionToken& token) {
    RawPeer raw(peers->listener().addresses()[0]);
    raw.Send(MessageType::kAttach, 0, EncodeAttach({token, 0}));
    const auto message = raw.Read();
    EXPECT_TRUE(message && message->header.type == static_cast<int>(MessageType::kAttachReply));
    EXPECT_TRUE(raw.ReadToEnd());
    return message ? CodeFromWire(ParseVerdict(message->body)->status) : Code::kOk;
  };
  EXPECT_EQ(attach(session.reply.token), Code::kInvalidArgument) << "a third stream of two";
  SessionToken wrong = session.reply.token;
  wrong[15] ^= 1;
  EXPECT_EQ(attach(wrong), Code::kFenced);
  EXPECT_EQ(attach(SessionToken{}), Code::kFenced);
  session.control->Close();
  EXPECT_EQ(peers->other_server_events.WaitClosed().code(), Code::kDisconnected);
  EXPECT_EQ(attach(session.reply.token), Code::kFenced) << "the session is over";
  ExpectWell(*peers);
}

TEST_P(TransportHostile, ASessionThatNeverAttachesADataStreamEnds) {
  Peers::Options options;
  options.server_limits.hello_timeout = milliseconds(300);
  const auto peers = Start(options);
  RawPeer raw(peers->listener().addresses()[0]);
  EXPECT_EQ(raw.SayHello().status, 0);
  EXPECT_TRUE(raw.ReadToEnd());
  EXPECT_EQ(peers->other_server_events.WaitClosed().code(), Code::kDisconnected);
  ExpectWell(*peers);
}

TEST_P(TransportHostile, MessagesOutOfPlaceEndTheirSessionOnly) {
  const auto peers = Start();
  int sessions = 0;
  for (const MessageType type :
       {MessageType::kHello, MessageType::kHelloReply, MessageType::kAttach,
        MessageType::kAttachReply, MessageType::kData}) {
    auto session = Join(*peers);
    session.control->Send(type, 0, {});
    EXPECT_TRUE(session.control->ReadToEnd());
    ++sessions;
    auto& events = peers->other_server_events;
    ASSERT_TRUE(events.WaitFor([&] { return events.closed == sessions; }));
    EXPECT_EQ(events.closed_with.code(), Code::kCorruptMessage);
  }
  ExpectWell(*peers);
}

TEST_P(TransportHostile, MessagesOfTheSessionThatWeDoNotKnowAreSkipped) {
  const auto peers = Start();
  auto session = Join(*peers);
  session.control->Send(static_cast<MessageType>(9), 0, AsBytes("a newer peer's"));
  session.control->Send(static_cast<MessageType>(15), 0, {});
  session.control->Send(MessageType::kPing, 31, {});
  const auto pong = session.control->Read();
  ASSERT_TRUE(pong);
  EXPECT_EQ(pong->header.type, static_cast<int>(MessageType::kPong));
  EXPECT_EQ(pong->header.request_id, 31u);
}

TEST_P(TransportHostile, BrokenDataHeadersEndTheirSessionOnly) {
  Peers::Options options;
  options.server_limits.max_chunk_bytes = 1u << 20;
  const auto peers = Start(options);
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  const DataHeader bad[] = {
      {.offset = kMax, .length = 2},      // Overflows.
      {.offset = 2, .length = kMax - 1},  //
      {.length = (1u << 20) + 1},         // Over the limit.
      {.status = 3, .length = 8},         // A failure with bytes.
  };
  int sessions = 0;
  const auto expect_closed = [&](Code code) {
    auto& events = peers->other_server_events;
    ASSERT_TRUE(events.WaitFor([&] { return events.closed == sessions; }));
    EXPECT_EQ(events.closed_with.code(), code);
  };
  for (const DataHeader& header : bad) {
    auto session = Join(*peers);
    session.streams[0]->Send(EncodeDataHeader(1, header));
    ++sessions;
    expect_closed(header.length == (1u << 20) + 1 ? Code::kTooLarge : Code::kCorruptMessage);
  }
  for (const MessageType type : {MessageType::kPing, MessageType::kStore, MessageType::kMemory,
                                 MessageType::kReference, MessageType::kTaken}) {
    auto session = Join(*peers);
    session.streams[0]->Send(type, 0, std::vector<std::byte>(24));
    ++sessions;
    expect_closed(Code::kCorruptMessage);
  }
  auto session = Join(*peers);
  session.streams[0]->Send(MessageType::kData, 0, std::vector<std::byte>(23));
  session.streams[0]->Send(std::vector<std::byte>(1));
  ++sessions;
  expect_closed(Code::kCorruptMessage);
  ExpectWell(*peers);
}

TEST_P(TransportHostile, LongerDataHeadersOfNewerPeersAreUnderstood) {
  const auto peers = Start();
  GuardedBuffer destination(5);
  auto& events = peers->other_server_events;
  events.With([&] { events.destinations[{4, 0}] = {destination.vec()}; });
  auto session = Join(*peers);
  const DataHeader header{.length = 5};
  std::vector<std::byte> body(sizeof(header) + 100000, std::byte{0xbb});
  std::memcpy(body.data(), &header, sizeof(header));
  for (int i = 0; i < 2; ++i) {
    session.streams[0]->Send(MessageType::kData, 4, body);
    session.streams[0]->Send(AsBytes("12345"));
  }
  ASSERT_TRUE(events.WaitFor([&] { return events.arrived.size() == 2; }));
  EXPECT_EQ(destination.text(), "12345");
}

TEST_P(TransportHostile, APeerThatStopsInMidFrameIsDroppedThoughItPings) {
  Peers::Options options;
  options.server_limits.heartbeat = milliseconds(100);
  options.server_limits.peer_timeout = milliseconds(1000);
  const auto peers = Start(options);
  auto session = Join(*peers);
  session.streams[0]->Send(EncodeDataHeader(1, {.length = 1000}));
  session.streams[0]->Send(AsBytes("not a thousand"));
  // Answers every PING until the session is over.
  while (const auto message = session.control->Read()) {
    if (message->header.type == static_cast<int>(MessageType::kGoodbye)) break;
    session.control->Send(MessageType::kPong, message->header.request_id, {});
  }
  EXPECT_EQ(peers->other_server_events.WaitClosed().code(), Code::kDisconnected);
  ExpectWell(*peers);
}

TEST_P(TransportHostile, AMessageMustComeWholeInTime) {
  Peers::Options options;
  options.server_limits.heartbeat = milliseconds(50);
  options.server_limits.peer_timeout = milliseconds(500);
  const auto peers = Start(options);
  auto session = Join(*peers);
  const std::vector<std::byte> message = Frame(MessageType::kTouch, 1, std::vector<std::byte>(60));
  ByteSpan rest = message;
  // A byte now and then, whenever it is asked for a sign of life. It takes six times too long.
  while (const auto asked = session.control->Read()) {
    if (asked->header.type != static_cast<int>(MessageType::kPing) || rest.empty()) break;
    session.control->Send(rest.first(1));
    rest = rest.subspan(1);
  }
  EXPECT_EQ(peers->other_server_events.WaitClosed().code(), Code::kDeadlineExceeded);
  ExpectWell(*peers);
}

TEST_P(TransportHostile, MessagesOfAllSessionsTogetherAreBounded) {
  const auto budget = std::make_shared<MessageBudget>(4u << 20);
  Peers::Options options;
  options.server_limits.message_budget = budget;
  const auto peers = Start(options);
  const auto message = Frame(MessageType::kTouch, 1, std::vector<std::byte>(3u << 20));
  const ByteSpan most = ByteSpan(message).first(message.size() - 1);
  auto first = Join(*peers);
  first.control->Send(most);
  const auto until = MonotonicNow() + std::chrono::seconds(20);
  while (budget->bytes() < (2u << 20) && MonotonicNow() < until) peers->server_loop().Run([] {});
  ASSERT_GE(budget->bytes(), 2u << 20);
  auto second = Join(*peers);
  second.control->Send(most);
  EXPECT_EQ(peers->other_server_events.WaitClosed().code(), Code::kResourceExhausted);
  ExpectWell(*peers);
  // The first goes on: its message arrives, and then takes nothing any more.
  first.control->Send(ByteSpan(message).last(1));
  auto& events = peers->other_server_events;
  ASSERT_TRUE(events.WaitFor([&] { return !events.messages.empty(); }));
  first.control->Close();
  ASSERT_TRUE(events.WaitFor([&] { return events.closed == 2; }));
  while (budget->bytes() > 0 && MonotonicNow() < until) peers->server_loop().Run([] {});
  EXPECT_EQ(budget->bytes(), 0u);
}

TEST_P(TransportHostile, MessagesThatNobodyReadsCountInTheBudgetOfAll) {
  const auto budget = std::make_shared<MessageBudget>(1u << 20);
  Peers::Options options;
  options.server_limits.message_budget = budget;
  const auto peers = Start(options);
  auto session = Join(*peers);
  AskWithoutReading(session);
  EXPECT_EQ(peers->other_server_events.WaitClosed().code(), Code::kResourceExhausted);
  ExpectWell(*peers);
}

TEST_P(TransportHostile, APeerThatReadsNoMessagesCostsOnlyItsOwnSession) {
  Peers::Options options;
  options.server_limits.max_queued_bytes = 8u << 20;
  const auto peers = Start(options);
  auto session = Join(*peers);
  AskWithoutReading(session);
  EXPECT_EQ(peers->other_server_events.WaitClosed().code(), Code::kBusy);
  ExpectWell(*peers);
}

TEST_P(TransportHostile, SessionsBeyondTheLimitAreToldToComeBack) {
  Peers::Options options;
  options.edit_listen = [](ListenOptions& listen) { listen.max_sessions = 2; };
  const auto peers = Start(options);
  RecordingEvents second, third;
  const auto session = peers->DialMore(second, peers->dial_options());
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(peers->DialMore(third, peers->dial_options()).status().code(), Code::kBusy);
  EXPECT_EQ(WaitRefused().code(), Code::kBusy);
  peers->client_loop().Run([&] { (*session)->Close(Status::Ok()); });
  EXPECT_FALSE(second.WaitClosed().ok());
  auto& events = peers->other_server_events;
  ASSERT_TRUE(events.WaitFor([&] { return events.closed == 1; }));
  peers->server_loop().Run([] {});  // Its place is free once OnClosed() has returned.
  const auto again = peers->DialMore(third, peers->dial_options());
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  peers->client_loop().Run([&] { (*again)->Close(Status::Ok()); });
  EXPECT_FALSE(third.WaitClosed().ok());
}

// Random frames, good frames with random damage, and good frames in random order, from one seed.
TEST_P(TransportHostile, RandomBytesNeverHurtAnybodyElse) {
  const auto peers = Start();
  std::mt19937_64 rng(31);
  for (int round = 0; round < 150; ++round) {
    RawPeer control(peers->listener().addresses()[0]);
    std::vector<std::byte> bytes;
    if (round % 3 != 0) {
      EXPECT_EQ(control.SayHello().status, 0);
    }
    for (int i = 0; i < 20; ++i) {
      std::vector<std::byte> body(rng() % 200);
      for (std::byte& b : body) b = static_cast<std::byte>(rng());
      const auto frame = Frame(static_cast<MessageType>(rng() % 70), rng() % 4, body);
      bytes.insert(bytes.end(), frame.begin(), frame.end());
    }
    if (round % 2 == 0) {
      for (int i = 0; i < 3; ++i) bytes[rng() % bytes.size()] ^= static_cast<std::byte>(1 + rng());
    }
    bytes.resize(rng() % (bytes.size() + 1));
    control.Send(bytes);
    control.HalfClose();
    EXPECT_TRUE(control.ReadToEnd()) << round;
  }
  ExpectWell(*peers);
}

// The ucx wire has hostile peers of its own: transport_ucx_test.cc.
std::vector<Road> SocketRoads() {
  std::vector<Road> roads = Roads();
  std::erase_if(roads, [](const Road& road) { return road.wire != "tcp"; });
  return roads;
}

INSTANTIATE_TEST_SUITE_P(Roads, TransportHostile, testing::ValuesIn(SocketRoads()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace penstock
