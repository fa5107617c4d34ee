// Abandoned, closed, killed and frozen: after that nobody touches memory that is not his, everybody
// is told exactly once, and nothing is left. For every wire.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <future>
#include <random>

#include "tests/integration/child_process.h"
#include "tests/integration/transport_peers.h"
#include "tests/sanitizers/sanitizers.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;

class TransportLifecycle : public testing::TestWithParam<Road> {};

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

bool OnlyByte(std::span<const std::byte> bytes, uint8_t value) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [value](std::byte b) { return b == std::byte{value}; });
}

// The client abandons what the server sends, after a random part of it has landed; from `done` on
// the memory is the test's again.
TEST_P(TransportLifecycle, AbandonedDestinationsNeverChangeAgain) {
  std::mt19937_64 rng(21);
  constexpr size_t kBytes = 6u << 20;
  GuardedBuffer source(kBytes);
  Peers peers(GetParam());
  RecordingEvents& events = peers.client_events;
  FillPattern({source.data(), kBytes}, 1);
  for (uint64_t request = 1; request <= Turns(40); ++request) {
    GuardedBuffer destination(kBytes);
    const uint64_t after = rng() % (kBytes * 5 / 4);  // Sometimes when all is over.
    std::promise<void> abandoned;
    uint64_t landed = 0;
    bool asked = false;
    const auto abandon = [&] {
      if (std::exchange(asked, true)) return;
      events.With([&] { events.destinations.erase({request, 0}); });
      peers.client()->Abandon(request, [&] {
        std::memset(destination.data(), 0xee, kBytes);
        abandoned.set_value();
      });
    };
    const auto on_data = [&](uint64_t id, const DataHeader& header, const Status& status) {
      if (id != request || header.item != 0) return;
      EXPECT_FALSE(asked) << "OnData() after Abandon()";
      EXPECT_TRUE(status.ok());
      landed += header.length;
      if (landed >= after || landed == kBytes) abandon();
    };
    events.With([&] { events.destinations[{request, 0}] = {destination.vec()}; });
    peers.OnClient([&](Session&) { events.on_data = on_data; });
    if (after == 0) peers.OnClient([&](Session&) { abandon(); });
    DoneLog sent;
    const iovec payload = source.vec();
    peers.OnServer([&](Session& session) {
      session.SendData(request, {.length = kBytes}, {&payload, 1}, sent.For(request));
    });
    abandoned.get_future().wait();
    sent.WaitFor(1);
    // Whatever was on the way is behind us when this has come through on every stream.
    GuardedBuffer next(kBytes);
    events.With([&] { events.destinations[{request, 1}] = {next.vec()}; });
    peers.OnServer([&](Session& session) {
      session.SendData(request, {.item = 1, .length = kBytes}, {&payload, 1}, nullptr);
    });
    ASSERT_TRUE(events.WaitForBytes(request, 1, kBytes));
    peers.OnClient([&](Session&) { events.on_data = nullptr; });
    EXPECT_EQ(FirstWrong({next.data(), kBytes}, 1), kBytes);
    EXPECT_TRUE(OnlyByte({destination.data(), kBytes}, 0xee)) << request;
  }
}

TEST_P(TransportLifecycle, AbandonedSourcesAreNotReadAgain) {
  std::mt19937_64 rng(22);
  constexpr size_t kBytes = 24u << 20;
  constexpr uint32_t kItems = 3;
  // What of an item was on its way on another stream may come after it was reported as failed.
  GuardedBuffer destination(kBytes);
  Peers peers(GetParam());
  RecordingEvents& events = peers.server_events;
  for (uint64_t request = 1; request <= Turns(25); ++request) {
    events.With([&] {
      events.destinations.clear();
      for (uint32_t i = 0; i < kItems; ++i) {
        events.destinations[{request, i}] = {destination.vec()};
      }
    });
    void* const memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto registration = RegisterForTest(memory, kBytes);
    FillPattern({static_cast<std::byte*>(memory), kBytes}, request);
    DoneLog sent;
    std::promise<size_t> abandoned;
    const uint64_t turns = rng() % 12;
    peers.OnClient([&](Session& session) {
      const iovec payload{memory, kBytes};
      for (uint32_t i = 0; i < kItems; ++i) {
        session.SendData(request, {.item = i, .length = kBytes}, {&payload, 1}, sent.For(i));
      }
      // Some turns of the loop later.
      const auto again = std::make_shared<std::function<void(uint64_t)>>();
      *again = [&, again](uint64_t left) {
        if (left > 0) {
          session.loop().After(milliseconds(1), [again, left] { (*again)(left - 1); });
          return;
        }
        session.Abandon(request, [&] {
          registration.reset();
          EXPECT_EQ(munmap(memory, kBytes), 0);
          abandoned.set_value(sent.count());
        });
        session.loop().Post([again] { *again = nullptr; });
      };
      (*again)(turns);
    });
    EXPECT_EQ(abandoned.get_future().get(), kItems) << "Abandon() called back before a SendDone";
    // Each item is whole and right at the peer, or reported as failed.
    ASSERT_TRUE(events.WaitFor([&] {
      for (uint32_t i = 0; i < kItems; ++i) {
        const bool failed = std::any_of(
            events.failed.begin(), events.failed.end(),
            [&](const Arrived& one) { return one.request_id == request && one.header.item == i; });
        if (!failed && events.LandedBytes(request, i) < kBytes) return false;
      }
      return true;
    })) << "request "
        << request << ", closed " << events.closed << ": " << events.closed_with.ToString();
    for (const auto& [item, status] : sent.WaitFor(kItems)) {
      EXPECT_TRUE(status.ok() || status.code() == Code::kCancelled) << status.ToString();
    }
    events.With([&] {
      for (const Arrived& one : events.failed) {
        EXPECT_EQ(CodeFromWire(one.header.status), Code::kCancelled);
      }
      events.arrived.clear();
      events.failed.clear();
    });
  }
}

TEST_P(TransportLifecycle, AbandoningWhatIsNotThereCallsBack) {
  Peers peers(GetParam());
  std::promise<void> done;
  bool inside = false;
  peers.OnClient([&](Session& session) {
    inside = true;
    session.Abandon(12345, [&] {
      EXPECT_FALSE(inside);
      done.set_value();
    });
    inside = false;
  });
  done.get_future().wait();
}

enum class Ender { kClient, kServer, kListener, kBoth };

void CloseUnderLoad(const Road& road, Ender ender, std::mt19937_64& rng) {
  constexpr uint32_t kItems = 40;
  constexpr size_t kBytes = 3u << 20;
  GuardedBuffer source(kBytes);
  GuardedBuffer at_server(kBytes);
  GuardedBuffer at_client(kBytes);
  Peers peers(road);
  DoneLog sent;
  std::promise<void> abandoned;
  const auto load = [&](Session& session, RecordingEvents& peer, uint64_t request) {
    GuardedBuffer& destination = &peer == &peers.server_events ? at_server : at_client;
    peer.With([&] {
      for (uint32_t i = 0; i < kItems; ++i) {
        // All of a side into one place: nobody looks at the bytes.
        peer.destinations[{request, i}] = {destination.vec()};
      }
    });
    const iovec payload = source.vec();
    for (uint32_t i = 0; i < kItems; ++i) {
      session.SendMessage(MessageType::kMatch, request, AsBytes("beside the data"));
      session.SendData(request, {.item = i, .length = kBytes}, {&payload, 1}, sent.For(request));
    }
  };
  peers.OnClient([&](Session& session) { load(session, peers.server_events, 1); });
  if (ender != Ender::kListener) {
    peers.OnServer([&](Session& session) { load(session, peers.client_events, 2); });
  }
  RecordingEvents& watched = peers.server_events;
  const size_t enough = rng() % (3 * kItems);
  ASSERT_TRUE(watched.WaitFor([&] { return watched.arrived.size() >= enough; }));
  peers.client_loop().Run([&] {
    bool alive = false;
    peers.client_events.With([&] { alive = peers.client_events.closed == 0; });
    if (!alive) return abandoned.set_value();
    peers.client()->Abandon(1, [&] { abandoned.set_value(); });
  });
  const auto close = [](Session& session) { session.Close(Status(Code::kCancelled, "enough")); };
  if (ender == Ender::kServer || ender == Ender::kBoth) peers.OnServer(close);
  if (ender == Ender::kClient) peers.OnClient(close);
  if (ender == Ender::kListener) peers.listener().Stop(Status(Code::kBusy, "stopping"));
  EXPECT_FALSE(peers.client_events.WaitClosed().ok());
  EXPECT_FALSE(peers.server_events.WaitClosed().ok());
  abandoned.get_future().wait();
  const size_t expected = ender == Ender::kListener ? kItems : 2 * kItems;
  sent.WaitFor(expected);
  // All is said: from here on nobody may touch the memory.
  std::memset(at_server.data(), 0xdd, kBytes);
  std::memset(at_client.data(), 0xdd, kBytes);
  peers.listener().Stop(Status::Ok());
  EXPECT_TRUE(OnlyByte({at_server.data(), kBytes}, 0xdd));
  EXPECT_TRUE(OnlyByte({at_client.data(), kBytes}, 0xdd));
}

TEST_P(TransportLifecycle, ClosingUnderLoadTellsEverybodyOnce) {
  std::mt19937_64 rng(23);
  for (uint64_t round = 0; round < Turns(5); ++round) {
    CloseUnderLoad(GetParam(), Ender::kClient, rng);
    CloseUnderLoad(GetParam(), Ender::kServer, rng);
    CloseUnderLoad(GetParam(), Ender::kListener, rng);
    CloseUnderLoad(GetParam(), Ender::kBoth, rng);
  }
}

TEST_P(TransportLifecycle, SendingAfterCloseIsAnsweredBeforeOnClosed) {
  Peers peers(GetParam());
  GuardedBuffer memory(100);
  std::vector<Code> codes;
  size_t answered = 0;
  peers.OnClient([&](Session& session) {
    session.Close(Status(Code::kCancelled, "enough"));
    const iovec payload = memory.vec();
    session.SendData(1, {.length = 100}, {&payload, 1}, [&](const Status& status) {
      codes.push_back(status.code());
      session.SendData(1, {.length = 100}, {&payload, 1},
                       [&](const Status& again) { codes.push_back(again.code()); });
    });
    session.Abandon(1, [&] { ++answered; });
  });
  EXPECT_EQ(peers.client_events.WaitClosed().code(), Code::kCancelled);
  peers.client_loop().Run([&] {
    EXPECT_EQ(codes, (std::vector<Code>{Code::kCancelled, Code::kCancelled}));
    EXPECT_EQ(answered, 1u);
  });
}

// The peer may be reading that memory until the session has ended.
TEST_P(TransportLifecycle, AbandoningInASessionThatEndsCallsBackAfterTheSends) {
  constexpr size_t kBytes = 32u << 20;  // More than any wire takes at once.
  GuardedBuffer source(kBytes);
  Peers peers(GetParam());
  std::vector<std::string> order;
  peers.OnClient([&](Session& session) {
    const iovec payload = source.vec();
    session.SendData(1, {.length = kBytes}, {&payload, 1},
                     [&](const Status&) { order.push_back("sent"); });
    session.Close(Status(Code::kCancelled, "enough"));
    session.Abandon(1, [&] { order.push_back("abandoned"); });
  });
  EXPECT_EQ(peers.client_events.WaitClosed().code(), Code::kCancelled);
  peers.client_loop().Run([&] {
    EXPECT_EQ(order, (std::vector<std::string>{"sent", "abandoned"}));
  });
}

TEST_P(TransportLifecycle, ManySessionsLeaveNothingBehind) {
  Peers peers(GetParam());
  size_t before = 0;
  for (int round = 0; round < 60; ++round) {
    if (round == 10) before = OpenDescriptors();  // The first ones may warm something up.
    RecordingEvents events;
    const auto session = peers.DialMore(events, peers.dial_options());
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    GuardedBuffer memory(1u << 20);
    DoneLog sent;
    peers.client_loop().Run([&] {
      const iovec payload = memory.vec();
      (*session)->SendData(1, {.length = memory.size()}, {&payload, 1}, sent.For(1));
      if (round % 2 == 0) (*session)->Close(Status::Ok());
    });
    sent.WaitFor(1);
    if (round % 2 != 0) peers.client_loop().Run([&] { (*session)->Close(Status::Ok()); });
    EXPECT_FALSE(events.WaitClosed().ok());
    ASSERT_TRUE(peers.other_server_events.WaitFor(
        [&] { return peers.other_server_events.closed == round + 1; }));
  }
  peers.server_loop().Run([] {});
  EXPECT_LE(OpenDescriptors(), before + 2);
}

struct Mishap {
  int signal;
  const char* name;
};

class TransportMishap : public testing::TestWithParam<std::tuple<Road, Mishap>> {};

// Limits that notice a frozen peer soon.
SessionLimits Impatient() {
  SessionLimits limits;
  limits.heartbeat = milliseconds(200);
  limits.peer_timeout = milliseconds(2000);
  return limits;
}

TEST_P(TransportMishap, AServerThatGoesAwayInMidFetchEndsTheSessionSoon) {
  const Road road = std::get<0>(GetParam());
  TestDirectory directory;
  ChildProcess child(
      {PENSTOCK_TRANSPORT_CHILD, "serve", directory.Resolve(road.address), road.wire});
  auto loop = std::move(EventLoop::Start("client")).value();
  RecordingEvents events;
  GuardedBuffer destination(4u << 20);
  events.locate = [&](uint64_t, const DataHeader& header, Pieces& pieces) {
    pieces.push_back({destination.data() + header.offset, header.length});
    return true;
  };
  DialOptions options;
  options.address = Address::Parse(child.ReadLine()).value();
  options.wire = road.wire;
  options.limits = Impatient();
  const auto session = DialAndWait(*loop, options, events);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  GuardedBuffer source(4u << 20);
  DoneLog sent;
  loop->Run([&] {
    (*session)->SendMessage(MessageType::kFetch, 1, {});
    const iovec payload = source.vec();
    for (uint32_t i = 0; i < 20; ++i) {
      (*session)->SendData(2, {.item = i, .length = source.size()}, {&payload, 1}, sent.For(i));
    }
  });
  ASSERT_TRUE(events.WaitFor([&] { return events.arrived.size() > 10; }));
  const MonotonicTime at = MonotonicNow();
  child.Signal(std::get<1>(GetParam()).signal);
  EXPECT_EQ(events.WaitClosed().code(), Code::kDisconnected);
  EXPECT_LT(MonotonicNow() - at, std::chrono::seconds(15));
  sent.WaitFor(20);
  std::memset(destination.data(), 0xcc, destination.size());
  loop->Stop();
  EXPECT_TRUE(OnlyByte({destination.data(), destination.size()}, 0xcc));
  child.Signal(SIGKILL);
}

TEST_P(TransportMishap, AClientThatGoesAwayInMidStoreEndsTheSessionSoon) {
  const Road road = std::get<0>(GetParam());
  Peers::Options options;
  options.server_limits = Impatient();
  GuardedBuffer destination(4u << 20);
  Peers peers(road, options);
  RecordingEvents& events = peers.other_server_events;
  peers.OnServer([&](Session&) {
    events.locate = [&](uint64_t, const DataHeader& header, Pieces& pieces) {
      pieces.push_back({destination.data() + header.offset, header.length});
      return true;
    };
  });
  ChildProcess child(
      {PENSTOCK_TRANSPORT_CHILD, "send", peers.dial_options().address.ToString(), road.wire});
  ASSERT_EQ(child.ReadLine(), "up");
  ASSERT_TRUE(events.WaitFor([&] { return events.arrived.size() > 10; }));
  const MonotonicTime at = MonotonicNow();
  child.Signal(std::get<1>(GetParam()).signal);
  EXPECT_EQ(events.WaitClosed().code(), Code::kDisconnected);
  EXPECT_LT(MonotonicNow() - at, std::chrono::seconds(15));
  std::memset(destination.data(), 0xcc, destination.size());
  // The other session, on the same loop and wire, has noticed nothing.
  peers.OnClient([](Session& session) { session.SendMessage(MessageType::kTouch, 1, {}); });
  ASSERT_TRUE(peers.server_events.WaitFor([&] { return !peers.server_events.messages.empty(); }));
  EXPECT_TRUE(OnlyByte({destination.data(), destination.size()}, 0xcc));
  child.Signal(SIGKILL);
}

INSTANTIATE_TEST_SUITE_P(Roads, TransportLifecycle, testing::ValuesIn(Roads()),
                         [](const auto& param) { return param.param.name; });
INSTANTIATE_TEST_SUITE_P(Roads, TransportMishap,
                         testing::Combine(testing::ValuesIn(Roads()),
                                          testing::Values(Mishap{SIGKILL, "Killed"},
                                                          Mishap{SIGSTOP, "Frozen"})),
                         [](const auto& param) {
                           return std::get<0>(param.param).name + std::get<1>(param.param).name;
                         });

}  // namespace
}  // namespace penstock
