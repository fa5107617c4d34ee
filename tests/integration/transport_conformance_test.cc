// What every wire must do, on every kind of socket. A new wire adds its roads to
// transport_peers.cc and writes no test of its own for any of this.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <future>
#include <random>

#include "tests/integration/transport_peers.h"

namespace penstock {
namespace {

class TransportConformance : public testing::TestWithParam<Road> {};

// Sends all of `payload` as one item; counts into `done`, on the loop of `session`.
void Send(Session& session, uint64_t request, uint32_t item, std::vector<iovec> payload,
          Session::SendDone done) {
  uint64_t length = 0;
  for (const iovec& piece : payload) length += piece.iov_len;
  session.SendData(request, {.item = item, .length = length}, payload, std::move(done));
}

// Cuts `memory` into `count` pieces at random places; some may be empty.
std::vector<iovec> Cut(iovec memory, size_t count, std::mt19937_64& rng) {
  std::vector<size_t> cuts = {0, memory.iov_len};
  while (cuts.size() < count + 1) cuts.push_back(rng() % (memory.iov_len + 1));
  std::sort(cuts.begin(), cuts.end());
  std::vector<iovec> pieces;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    pieces.push_back({static_cast<char*>(memory.iov_base) + cuts[i], cuts[i + 1] - cuts[i]});
  }
  return pieces;
}

TEST_P(TransportConformance, HelloTellsBothSidesAboutEachOther) {
  Peers::Options options;
  options.tenant = "acme";
  Peers peers(GetParam(), options);
  peers.OnClient([&](Session& session) {
    const SessionInfo& info = session.info();
    EXPECT_EQ(info.version, kProtocolVersion);
    EXPECT_EQ(info.peer_incarnation, 77u);
    EXPECT_EQ(info.wire, GetParam().wire);
    EXPECT_TRUE(info.peer_software.starts_with("penstock "));
    EXPECT_EQ(info.max_in_flight, 1024u);
    EXPECT_EQ(info.max_chunk_bytes, 1ull << 40);
    EXPECT_EQ(info.tenant, "");
  });
  peers.OnServer([&](Session& session) {
    const SessionInfo& info = session.info();
    EXPECT_EQ(info.peer_incarnation, 99u);
    EXPECT_EQ(info.tenant, "acme");
    EXPECT_EQ(info.client_name, "test");
    EXPECT_EQ(info.wire, GetParam().wire);
  });
}

TEST_P(TransportConformance, MessagesArriveWholeAndInOrder) {
  Peers peers(GetParam());
  const std::string big(FrameHeader::kMaxBodyBytes, 'x');
  peers.OnClient([&](Session& session) {
    for (uint64_t i = 0; i < 1000; ++i) {
      session.SendMessage(MessageType::kMatch, i, AsBytes(std::string(i % 100, 'm')));
    }
    session.SendMessage(MessageType::kStore, 1000, AsBytes(big));
    session.SendMessage(static_cast<MessageType>(200), 1001, {});  // Nobody knows this type.
  });
  auto& events = peers.server_events;
  ASSERT_TRUE(events.WaitFor([&] { return events.messages.size() == 1002; }));
  events.With([&] {
    for (uint64_t i = 0; i < 1000; ++i) {
      EXPECT_EQ(events.messages[i].request_id, i);
      EXPECT_EQ(events.messages[i].body, std::string(i % 100, 'm'));
    }
    EXPECT_EQ(events.messages[1000].body, big);
    EXPECT_EQ(static_cast<int>(events.messages[1001].type), 200);
  });
}

TEST_P(TransportConformance, ScatteredPiecesOnBothSidesMayDiffer) {
  Peers peers(GetParam());
  std::mt19937_64 rng(11);
  for (int round = 0; round < 20; ++round) {
    const size_t size = rng() % (3u << 20);
    GuardedBuffer source(size);
    GuardedBuffer destination(size);
    FillPattern({source.data(), size}, round);
    const auto from = Cut(source.vec(), 1 + rng() % 200, rng);
    const auto to = Cut(destination.vec(), 1 + rng() % 200, rng);
    peers.client_events.With([&] { peers.client_events.destinations[{1, round}] = to; });
    DoneLog sent;
    peers.OnServer([&](Session& session) { Send(session, 1, round, from, sent.For(round)); });
    ASSERT_TRUE(peers.client_events.WaitForBytes(1, round, size));
    sent.WaitFor(1);
    EXPECT_EQ(FirstWrong({destination.data(), size}, round), size);
  }
}

TEST_P(TransportConformance, ManyItemsBothWaysAtOnce) {
  Peers peers(GetParam());
  constexpr uint32_t kItems = 500;
  std::mt19937_64 rng(12);
  std::vector<std::unique_ptr<GuardedBuffer>> sources, destinations;
  for (uint32_t i = 0; i < 2 * kItems; ++i) {
    const size_t size = i % 50 == 0 ? (2u << 20) + i : rng() % 20000;
    sources.push_back(std::make_unique<GuardedBuffer>(size));
    destinations.push_back(std::make_unique<GuardedBuffer>(size));
    FillPattern({sources[i]->data(), size}, i);
    RecordingEvents& to = i < kItems ? peers.server_events : peers.client_events;
    to.With([&] { to.destinations[{2, i}] = {destinations[i]->vec()}; });
  }
  DoneLog done;
  peers.OnClient([&](Session& session) {
    for (uint32_t i = 0; i < kItems; ++i) Send(session, 2, i, {sources[i]->vec()}, done.For(i));
  });
  peers.OnServer([&](Session& session) {
    for (uint32_t i = kItems; i < 2 * kItems; ++i)
      Send(session, 2, i, {sources[i]->vec()}, done.For(i));
  });
  for (uint32_t i = 0; i < 2 * kItems; ++i) {
    RecordingEvents& to = i < kItems ? peers.server_events : peers.client_events;
    ASSERT_TRUE(to.WaitForBytes(2, i, destinations[i]->size())) << i;
    EXPECT_EQ(FirstWrong({destinations[i]->data(), destinations[i]->size()}, i),
              destinations[i]->size());
  }
  for (const auto& [item, status] : done.WaitFor(2 * kItems)) EXPECT_TRUE(status.ok()) << item;
  peers.OnClient([](Session& session) { EXPECT_EQ(session.queued_bytes(), 0u); });
  peers.OnServer([](Session& session) { EXPECT_EQ(session.queued_bytes(), 0u); });
}

TEST_P(TransportConformance, DataThatNobodyWantsIsThrownAwayAndTheNextIsRight) {
  GuardedBuffer source(5u << 20);
  GuardedBuffer destination(5u << 20);
  Peers peers(GetParam());
  FillPattern({source.data(), source.size()}, 1);
  peers.server_events.With([&] { peers.server_events.destinations[{1, 1}] = {destination.vec()}; });
  peers.OnClient([&](Session& session) {
    Send(session, 1, 0, {source.vec()}, nullptr);  // No such destination.
    Send(session, 1, 1, {source.vec()}, nullptr);
  });
  ASSERT_TRUE(peers.server_events.WaitForBytes(1, 1, source.size()));
  EXPECT_EQ(FirstWrong({destination.data(), destination.size()}, 1), destination.size());
  peers.server_events.With([&] {
    for (const Arrived& one : peers.server_events.arrived) EXPECT_EQ(one.header.item, 1u);
  });
}

TEST_P(TransportConformance, AFailedItemIsReportedWithoutBytes) {
  Peers peers(GetParam());
  DoneLog done;
  peers.OnServer([&](Session& session) {
    const DataHeader header{.item = 4, .status = static_cast<uint16_t>(Code::kMiss)};
    session.SendData(6, header, {}, done.For(0));
  });
  auto& events = peers.client_events;
  ASSERT_TRUE(events.WaitFor([&] { return !events.failed.empty(); }));
  events.With([&] {
    EXPECT_EQ(events.failed[0].request_id, 6u);
    EXPECT_EQ(events.failed[0].header.item, 4u);
    EXPECT_EQ(CodeFromWire(events.failed[0].header.status), Code::kMiss);
    EXPECT_TRUE(events.arrived.empty());
  });
  EXPECT_TRUE(done.WaitFor(1).begin()->second.ok());
}

TEST_P(TransportConformance, PiecesThatDoNotAddUpAreRefusedBeforeAnyByte) {
  GuardedBuffer memory(1000);
  Peers peers(GetParam());
  DoneLog done;
  peers.OnClient([&](Session& session) {
    const iovec piece = memory.vec();
    const iovec huge[2] = {{memory.data(), SIZE_MAX}, {memory.data(), 1001}};
    session.SendData(1, {.length = 999}, {&piece, 1}, done.For(0));
    session.SendData(1, {.length = 1001}, {&piece, 1}, done.For(1));
    session.SendData(1, {.length = 1000}, {}, done.For(2));
    session.SendData(1, {.length = 1000}, huge, done.For(3));  // The sum overflows to 1000.
    session.SendData(1, {.status = 1, .length = 1000}, {&piece, 1}, done.For(4));
  });
  for (const auto& [label, status] : done.WaitFor(5)) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << label;
  }
  peers.OnClient([&](Session& session) { session.SendMessage(MessageType::kTouch, 1, {}); });
  ASSERT_TRUE(peers.server_events.WaitFor([&] { return !peers.server_events.messages.empty(); }));
  peers.server_events.With([&] { EXPECT_TRUE(peers.server_events.arrived.empty()); });
}

TEST_P(TransportConformance, ADestinationOfTheWrongSizeFailsThatItemOnly) {
  GuardedBuffer source(100000);
  GuardedBuffer small(99999);
  GuardedBuffer large(100001);
  GuardedBuffer right(100000);
  Peers peers(GetParam());
  FillPattern({source.data(), source.size()}, 3);
  peers.OnServer([&](Session&) {
    peers.server_events.locate = [&](uint64_t, const DataHeader& header, Pieces& pieces) {
      GuardedBuffer* const to[] = {&small, &large, &right};
      pieces.push_back(to[header.item]->vec());
      return true;
    };
  });
  peers.OnClient([&](Session& session) {
    for (uint32_t i = 0; i < 3; ++i) Send(session, 1, i, {source.vec()}, nullptr);
  });
  auto& events = peers.server_events;
  ASSERT_TRUE(events.WaitFor([&] { return events.arrived.size() == 3; }));
  events.With([&] {
    for (const Arrived& one : events.arrived) {
      EXPECT_EQ(one.status.code(), one.header.item == 2 ? Code::kOk : Code::kBadBuffer);
    }
  });
  EXPECT_EQ(FirstWrong({right.data(), right.size()}, 3), right.size());
  EXPECT_EQ(small.text(), std::string(small.size(), '\0'));
}

// Memory with a hole: `size` bytes of which those from `hole` on cannot be used as `protection`
// says.
class HoledMemory {
 public:
  HoledMemory(size_t size, size_t hole, int protection) : size_(size) {
    base_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(base_, MAP_FAILED);
    EXPECT_EQ(mprotect(static_cast<char*>(base_) + hole, size - hole, protection), 0);
  }
  ~HoledMemory() { munmap(base_, size_); }
  iovec vec() { return {base_, size_}; }

 private:
  void* base_;
  size_t size_;
};

TEST_P(TransportConformance, DestinationsThatCannotBeWrittenFailAndTheSessionGoesOn) {
  const size_t size = 3u << 20;
  GuardedBuffer source(size);
  GuardedBuffer good(size);
  Peers peers(GetParam());
  FillPattern({source.data(), size}, 9);
  HoledMemory unmapped(size, 0, PROT_NONE);
  HoledMemory half(size, size / 2, PROT_NONE);
  HoledMemory read_only(size, 0, PROT_READ);
  peers.server_events.With([&] {
    auto& to = peers.server_events.destinations;
    to[{1, 0}] = {unmapped.vec()};
    to[{1, 1}] = {half.vec()};
    to[{1, 2}] = {read_only.vec()};
    to[{1, 3}] = {iovec{nullptr, size}};
    to[{1, 4}] = {good.vec()};
  });
  peers.OnClient([&](Session& session) {
    for (uint32_t i = 0; i < 5; ++i) Send(session, 1, i, {source.vec()}, nullptr);
  });
  auto& events = peers.server_events;
  ASSERT_TRUE(events.WaitForBytes(1, 4, size));
  EXPECT_EQ(FirstWrong({good.data(), size}, 9), size);
  for (uint32_t item = 0; item < 4; ++item) {
    // A part may have landed before the hole; the item as a whole must not look complete.
    EXPECT_TRUE(events.WaitFor([&] {
      return std::any_of(events.arrived.begin(), events.arrived.end(), [&](const Arrived& one) {
        return one.header.item == item && one.status.code() == Code::kBadBuffer;
      });
    })) << item;
    events.With([&] { EXPECT_LT(events.LandedBytes(1, item), size); });
  }
}

TEST_P(TransportConformance, SourcesThatCannotBeReadFailAndTheSessionGoesOn) {
  const size_t size = 3u << 20;
  GuardedBuffer source(size);
  GuardedBuffer good(size);
  Peers peers(GetParam());
  FillPattern({source.data(), size}, 9);
  HoledMemory unmapped(size, 0, PROT_NONE);
  HoledMemory half(size, size / 2, PROT_NONE);
  GuardedBuffer wanted(size + 100);  // What nobody wants need not be read, and then is not bad.
  DoneLog done;
  peers.server_events.With([&] {
    peers.server_events.destinations[{1, 9}] = {good.vec()};
    for (uint32_t i = 0; i < 4; ++i) peers.server_events.destinations[{1, i}] = {wanted.vec()};
  });
  peers.OnClient([&](Session& session) {
    const std::vector<iovec> small_then_bad = {iovec{source.data(), 100}, unmapped.vec()};
    std::vector<std::vector<iovec>> payloads = {
        {unmapped.vec()}, {half.vec()}, {iovec{nullptr, size}}, small_then_bad};
    for (uint32_t i = 0; i < payloads.size(); ++i) {
      Send(session, 1, i, payloads[i], done.For(i));
      // Good ones between them share the system call, and must not suffer.
      Send(session, 2, i, {iovec{source.data(), 1000}}, done.For(100 + i));
    }
    Send(session, 1, 9, {source.vec()}, done.For(9));
  });
  auto& events = peers.server_events;
  ASSERT_TRUE(events.WaitForBytes(1, 9, size));
  EXPECT_EQ(FirstWrong({good.data(), size}, 9), size);
  ASSERT_TRUE(events.WaitFor([&] { return events.failed.size() == 4; }));
  events.With([&] {
    for (const Arrived& one : events.failed) {
      EXPECT_EQ(CodeFromWire(one.header.status), Code::kBadBuffer);
    }
  });
  for (const auto& [label, status] : done.WaitFor(9)) {
    EXPECT_EQ(status.code(), label < 4 ? Code::kBadBuffer : Code::kOk) << label;
  }
  peers.OnClient([](Session& session) { EXPECT_EQ(session.queued_bytes(), 0u); });
}

TEST_P(TransportConformance, AnIdleSessionLivesOnHeartbeats) {
  Peers::Options options;
  options.client_limits.heartbeat = std::chrono::milliseconds(50);
  options.client_limits.peer_timeout = std::chrono::milliseconds(1000);
  options.server_limits = options.client_limits;
  Peers peers(GetParam(), options);
  std::promise<void> later;
  peers.client_loop().Run([&] {
    peers.client_loop().After(std::chrono::milliseconds(2300), [&] { later.set_value(); });
  });
  later.get_future().wait();
  peers.client_events.With([&] { EXPECT_EQ(peers.client_events.closed, 0); });
  peers.server_events.With([&] { EXPECT_EQ(peers.server_events.closed, 0); });
  peers.OnClient([](Session& session) { session.SendMessage(MessageType::kTouch, 1, {}); });
  EXPECT_TRUE(peers.server_events.WaitFor([&] { return !peers.server_events.messages.empty(); }));
}

TEST_P(TransportConformance, TheReasonOfAGoodbyeReachesThePeer) {
  Peers peers(GetParam());
  peers.OnServer([](Session& session) {
    session.SendMessage(MessageType::kReply, 1, AsBytes("last answer"));
    session.Close(Status(Code::kBusy, "draining"));
    session.SendMessage(MessageType::kReply, 2, {});  // Too late: dropped.
    session.Close(Status(Code::kInternal, "the second reason does not count"));
  });
  const Status why = peers.client_events.WaitClosed();
  EXPECT_EQ(why.code(), Code::kBusy);
  EXPECT_NE(why.message().find("draining"), std::string::npos);
  peers.client_events.With([&] { EXPECT_EQ(peers.client_events.messages.size(), 1u); });
  EXPECT_EQ(peers.server_events.WaitClosed().message(), "draining");
}

class TransportSizes : public testing::TestWithParam<std::tuple<Road, size_t>> {};

TEST_P(TransportSizes, EveryByteArrivesAndNoOther) {
  const Road road = std::get<0>(GetParam());
  const size_t size = std::get<1>(GetParam());
  GuardedBuffer source(size);
  GuardedBuffer destination(size);
  Peers peers(road);
  FillPattern({source.data(), size}, size);
  peers.server_events.With([&] { peers.server_events.destinations[{5, 3}] = {destination.vec()}; });
  DoneLog done;
  peers.OnClient([&](Session& session) {
    Send(session, 5, 3, {source.vec()}, done.For(1));
    EXPECT_EQ(done.count(), 0u) << "called from inside SendData()";
  });
  ASSERT_TRUE(peers.server_events.WaitForBytes(5, 3, size));
  EXPECT_EQ(FirstWrong({destination.data(), size}, size), size);
  EXPECT_TRUE(done.WaitFor(1).find(1)->second.ok());
  peers.OnClient([&](Session& session) { EXPECT_EQ(session.queued_bytes(), 0u); });
}

const auto kRoadName = [](const auto& param) { return param.param.name; };

INSTANTIATE_TEST_SUITE_P(Roads, TransportConformance, testing::ValuesIn(Roads()), kRoadName);
INSTANTIATE_TEST_SUITE_P(Roads, TransportSizes,
                         testing::Combine(testing::ValuesIn(Roads()),
                                          testing::Values(0, 1, 63, 4096, 64u << 10, 1u << 20,
                                                          (17u << 20) + 13)),
                         [](const auto& param) {
                           return std::get<0>(param.param).name + "_" +
                                  std::to_string(std::get<1>(param.param));
                         });

}  // namespace
}  // namespace penstock
