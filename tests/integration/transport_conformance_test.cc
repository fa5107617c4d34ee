// What every wire must do, on every kind of socket. A new wire adds its roads below and writes no
// test of its own for any of this.

#include <gtest/gtest.h>

#include "tests/integration/transport_peers.h"

namespace penstock {
namespace {

class TransportConformance : public testing::TestWithParam<Road> {};

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

class TransportSizes : public testing::TestWithParam<std::tuple<Road, size_t>> {};

TEST_P(TransportSizes, EveryByteArrivesAndNoOther) {
  const auto& [road, size] = GetParam();
  Peers peers(road);
  GuardedBuffer source(size);
  GuardedBuffer destination(size);
  FillPattern({source.data(), size}, size);
  peers.server_events.With([&] { peers.server_events.destinations[{5, 3}] = {destination.vec()}; });
  int done = 0;
  peers.OnClient([&](Session& session) {
    const DataHeader header{.item = 3, .length = size};
    const iovec payload = source.vec();
    session.SendData(5, header, {&payload, 1}, [&](const Status& status) {
      EXPECT_TRUE(status.ok()) << status.ToString();
      ++done;
    });
    EXPECT_EQ(done, 0) << "called from inside SendData()";
  });
  ASSERT_TRUE(peers.server_events.WaitForBytes(5, 3, size));
  EXPECT_EQ(FirstWrong({destination.data(), size}, size), size);
  peers.OnClient([&](Session& session) { EXPECT_EQ(session.queued_bytes(), 0u); });
  EXPECT_EQ(done, 1);
}

std::vector<Road> Roads() {
  return {{"TcpV4", "tcp", "tcp://127.0.0.1:0"},
          {"TcpV6", "tcp", "tcp://[::1]:0"},
          {"TcpUnix", "tcp", "unix"}};
}

INSTANTIATE_TEST_SUITE_P(Roads, TransportConformance, testing::ValuesIn(Roads()),
                         [](const auto& param) { return param.param.name; });
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
