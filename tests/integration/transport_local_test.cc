// The local wire alone: peers out of step, peers that leave answers unread or send descriptors that
// nobody asked for, other users, and systems that keep the daemon out of a client's memory.

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <future>

#include "common/transport/references.h"
#include "tests/integration/child_process.h"
#include "tests/integration/raw_peer.h"
#include "tests/integration/transport_peers.h"

namespace penstock {
namespace {

const Road kLocal{"Local", "local", "unix"};
constexpr size_t kLong = 8u << 20;

size_t OpenDescriptors() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

std::vector<std::byte> Entries(const std::vector<Reference>& references) {
  std::vector<std::byte> bytes(references.size() * sizeof(Reference));
  std::memcpy(bytes.data(), references.data(), bytes.size());
  return bytes;
}

// A raw client past HELLO, ATTACH and, if it likes, MEMORY.
struct RawLocal {
  explicit RawLocal(Peers& peers)
      : control(peers.listener().addresses()[0]), data(peers.listener().addresses()[0]) {
    reply = control.SayHello(1, "local");
    EXPECT_EQ(reply.wire, "local") << reply.message;
    data.Send(MessageType::kAttach, 0, EncodeAttach({reply.token, 0}));
    const auto verdict = data.Read();
    EXPECT_TRUE(verdict && ParseVerdict(verdict->body)->status == 0);
  }
  // Returns the daemon's flags.
  uint32_t Offer(uint32_t flags, const void* token) {
    const auto greeting = data.Read();
    EXPECT_TRUE(greeting && greeting->header.type == static_cast<int>(MessageType::kMemory));
    Send(MessageType::kMemory,
         {.item = flags, .offset = reinterpret_cast<uintptr_t>(token), .length = 16});
    const auto answer = data.Read();
    EXPECT_TRUE(answer.has_value());
    return answer ? ParseDataHeader(answer->body)->item : 0;
  }
  void Send(MessageType type, const DataHeader& header, ByteSpan entries = {}) {
    data.Send(EncodeDataHeader(1, header, type, static_cast<uint32_t>(entries.size())));
    data.Send(entries);
  }

  RawPeer control, data;
  HelloReply reply;
};

// Nobody else has suffered: the first session moves bytes both ways.
void ExpectWell(Peers& peers) {
  static uint64_t request = 1000;
  ++request;
  GuardedBuffer from(kLong), there(kLong), back(kLong);
  FillPattern({from.data(), kLong}, static_cast<uint8_t>(request));
  peers.server_events.With([&] { peers.server_events.destinations[{request, 0}] = {there.vec()}; });
  peers.client_events.With([&] { peers.client_events.destinations[{request, 0}] = {back.vec()}; });
  DoneLog sent;
  const iovec payload = from.vec(), copy = there.vec();
  peers.OnClient([&](Session& session) {
    session.SendData(request, {.length = kLong}, {&payload, 1}, sent.For(1));
  });
  ASSERT_TRUE(peers.server_events.WaitForBytes(request, 0, kLong));
  peers.OnServer([&](Session& session) {
    session.SendData(request, {.length = kLong}, {&copy, 1}, sent.For(2));
  });
  ASSERT_TRUE(peers.client_events.WaitForBytes(request, 0, kLong));
  for (const auto& [label, status] : sent.WaitFor(2)) EXPECT_TRUE(status.ok()) << label;
  EXPECT_EQ(std::memcmp(back.data(), from.data(), kLong), 0);
}

TEST(TransportLocal, FramesOutOfStepEndTheirSessionOnly) {
  Peers peers(kLocal);
  const auto one = Entries({{0, 100}});
  struct Case {
    const char* what;
    MessageType type;
    DataHeader header;
    std::vector<std::byte> entries;
  };
  const Case cases[] = {
      {"an answer to nothing", MessageType::kTaken, {}, {}},
      {"an answer with more behind it", MessageType::kTaken, {}, one},
      {"memory with more behind it", MessageType::kMemory, {}, one},
      {"memory once more", MessageType::kMemory, {.item = 4}, {}},
      {"a reference to nothing", MessageType::kReference, {.length = 100}, {}},
      {"half an entry", MessageType::kReference, {.length = 100}, std::vector<std::byte>(24)},
      {"too many", MessageType::kReference, {.length = 65}, std::vector<std::byte>(65 * 16)},
      {"less than promised", MessageType::kReference, {.length = 101}, one},
      {"more than promised", MessageType::kReference, {.length = 99}, one},
      {"past the last address",
       MessageType::kReference,
       {.length = 100},
       Entries({{~uint64_t{0} - 10, 100}})},
      {"a failure with bytes", MessageType::kReference, {.status = 3, .length = 100}, one},
  };
  int sessions = 0;
  auto& events = peers.other_server_events;
  GuardedBuffer destination(200);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    events.With([&] { events.destinations[{1, 0}] = {{destination.data(), c.header.length}}; });
    RawLocal raw(peers);
    EXPECT_EQ(raw.Offer(4, raw.reply.token.data()), 8u);
    raw.Send(c.type, c.header, c.entries);
    EXPECT_TRUE(raw.control.ReadToEnd());
    ++sessions;
    ASSERT_TRUE(events.WaitFor([&] { return events.closed == sessions; }));
    EXPECT_EQ(events.closed_with.code(), Code::kCorruptMessage) << events.closed_with.ToString();
  }
  EXPECT_EQ(std::count(destination.data(), destination.data() + 200, std::byte{0}), 200);
  ExpectWell(peers);
}

TEST(TransportLocal, AClientThatCannotProveWhoItIsIsNotRead) {
  Peers peers(kLocal);
  auto& events = peers.other_server_events;
  GuardedBuffer destination(100);
  const SessionToken wrong{1};
  for (const void* token : {static_cast<const void*>(&wrong), static_cast<const void*>(nullptr)}) {
    RawLocal raw(peers);
    EXPECT_EQ(raw.Offer(4, token), 0u);
    events.With([&] { events.destinations[{1, 0}] = {destination.vec()}; });
    raw.Send(MessageType::kReference, {.length = 100}, Entries({{0x1000, 100}}));
    EXPECT_TRUE(raw.control.ReadToEnd());
  }
  RawLocal bad(peers);  // It proves who it is, and then refers to what it does not have.
  EXPECT_EQ(bad.Offer(4, bad.reply.token.data()), 8u);
  bad.Send(MessageType::kReference, {.length = 100}, Entries({{0x1000, 100}}));
  const auto taken = bad.data.Read();
  ASSERT_TRUE(taken && taken->header.type == static_cast<int>(MessageType::kTaken));
  EXPECT_EQ(ParseDataHeader(taken->body)->status, static_cast<int>(Code::kBadBuffer));
  ExpectWell(peers);
}

TEST(TransportLocal, DescriptorsThatNobodyAskedForAreClosed) {
  Peers peers(kLocal);
  RawLocal raw(peers);
  EXPECT_EQ(raw.Offer(4, raw.reply.token.data()), 8u);
  const size_t before = OpenDescriptors();
  const auto entries = Entries({{0x1000, 100}});
  const auto header = EncodeDataHeader(7, {.length = 100}, MessageType::kReference,
                                       static_cast<uint32_t>(entries.size()));
  std::vector<std::byte> frame(header.begin(), header.end());
  frame.insert(frame.end(), entries.begin(), entries.end());
  for (int i = 0; i < 100; ++i) {
    iovec iov{frame.data(), frame.size()};
    const int fds[2] = {raw.data.fd(), raw.control.fd()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(fds))] = {};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const one = CMSG_FIRSTHDR(&message);
    one->cmsg_level = SOL_SOCKET;
    one->cmsg_type = SCM_RIGHTS;
    one->cmsg_len = CMSG_LEN(sizeof(fds));
    std::memcpy(CMSG_DATA(one), fds, sizeof(fds));
    ASSERT_EQ(sendmsg(raw.data.fd(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(frame.size()));
    ASSERT_TRUE(raw.data.Read());  // It has answered: nobody wants that.
  }
  EXPECT_LE(OpenDescriptors(), before + 1);
  ExpectWell(peers);
}

TEST(TransportLocal, APeerThatReadsNoAnswersCostsItsOwnSessionOnly) {
  Peers peers(kLocal);
  RawLocal raw(peers);
  EXPECT_EQ(raw.Offer(4, raw.reply.token.data()), 8u);
  // Nobody wants these, so that they cost nothing but their answers.
  std::vector<std::byte> many;
  for (int i = 0; i < 1000; ++i) {
    const auto entries = Entries({{0x1000, 100}});
    const auto header = EncodeDataHeader(7, {.length = 100}, MessageType::kReference,
                                         static_cast<uint32_t>(entries.size()));
    many.insert(many.end(), header.begin(), header.end());
    many.insert(many.end(), entries.begin(), entries.end());
  }
  for (int i = 0; i < 1000 && raw.data.SendSome(many); ++i) {
  }
  const Status why = peers.other_server_events.WaitClosed();
  EXPECT_EQ(why.code(), Code::kResourceExhausted) << why.ToString();
  ExpectWell(peers);
}

// Who closes the socket has its memory back: what is read after that is not what was sent. The
// socket that a forked child has, too, stays open and is only shut down.
TEST(TransportLocal, WhatIsReadFromAClientThatHasClosedIsNotTaken) {
  for (const bool forked : {false, true}) {
    SCOPED_TRACE(forked);
    Peers peers(kLocal);
    GuardedBuffer destination(100);
    std::vector<std::byte> memory(100, std::byte{7});
    RawLocal raw(peers);
    EXPECT_EQ(raw.Offer(4, raw.reply.token.data()), 8u);
    const int childs = forked ? dup(raw.data.fd()) : -1;
    auto& events = peers.other_server_events;
    peers.OnServer([&](Session&) {
      events.locate = [&](uint64_t, const DataHeader&, Pieces& pieces) {
        shutdown(raw.data.fd(), SHUT_RDWR);
        raw.data.Close();
        pieces.push_back(destination.vec());
        return true;
      };
    });
    raw.Send(MessageType::kReference, {.length = 100},
             Entries({{reinterpret_cast<uintptr_t>(memory.data()), 100}}));
    EXPECT_EQ(events.WaitClosed().code(), Code::kDisconnected);
    events.With([&] {
      ASSERT_EQ(events.arrived.size(), 1u);
      EXPECT_EQ(events.arrived[0].status.code(), Code::kDisconnected);
    });
    if (childs >= 0) close(childs);
    ExpectWell(peers);
  }
}

TEST(TransportLocal, APeerThatDoesNotLetGoOfMemoryLosesItsSession) {
  Peers peers(kLocal);
  GuardedBuffer source(kLong);
  RawLocal raw(peers);
  EXPECT_EQ(raw.Offer(2 + 4, raw.reply.token.data()), 8u);
  DoneLog done;
  std::promise<void> abandoned;
  const iovec payload = source.vec();
  peers.server_loop().Run([&] {
    peers.last_server()->SendData(5, {.length = kLong}, {&payload, 1}, done.For(1));
  });
  const auto reference = raw.data.Read();
  ASSERT_TRUE(reference);
  EXPECT_EQ(reference->header.type, static_cast<int>(MessageType::kReference));
  const MonotonicTime at = MonotonicNow();
  peers.server_loop().Run([&] { peers.last_server()->Abandon(5, [&] { abandoned.set_value(); }); });
  abandoned.get_future().wait();
  EXPECT_GE(MonotonicNow() - at, std::chrono::milliseconds(900)) << "it may still be reading";
  const Status why = peers.other_server_events.WaitClosed();
  EXPECT_EQ(why.code(), Code::kDisconnected);
  EXPECT_NE(why.message().find("let go"), std::string::npos) << why.ToString();
  EXPECT_FALSE(done.WaitFor(1).begin()->second.ok());
  ExpectWell(peers);
}

TEST(TransportLocal, APeerThatLivesAndTakesNothingLosesItsSession) {
  Peers::Options options;
  options.server_limits.heartbeat = std::chrono::milliseconds(100);
  options.server_limits.peer_timeout = std::chrono::milliseconds(600);
  GuardedBuffer source(kLong);
  Peers peers(kLocal, options);
  RawLocal raw(peers);
  EXPECT_EQ(raw.Offer(2 + 4, raw.reply.token.data()), 8u);
  DoneLog done;
  const iovec payload = source.vec();
  peers.server_loop().Run([&] {
    peers.last_server()->SendData(5, {.length = kLong}, {&payload, 1}, done.For(1));
  });
  while (const auto message = raw.control.Read()) {
    if (message->header.type == static_cast<int>(MessageType::kPing)) {
      raw.control.Send(MessageType::kPong, message->header.request_id, {});
    }
  }
  const Status why = peers.other_server_events.WaitClosed();
  EXPECT_NE(why.message().find("referred"), std::string::npos) << why.ToString();
  EXPECT_EQ(done.WaitFor(1).begin()->second.code(), Code::kDisconnected);
}

size_t DescriptorsOfTestMemory() {
  size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    char target[100] = {};
    if (readlink(path.c_str(), target, sizeof(target) - 1) > 0 &&
        std::strstr(target, "memfd:test-memory") != nullptr) {
      ++count;
    }
  }
  return count;
}

TEST(TransportLocal, AForkedChildOfAClientDoesNotKeepTheDaemonsMemory) {
  Peers peers(kLocal);
  ExpectWell(peers);
  ASSERT_EQ(DescriptorsOfTestMemory(), 2u) << "the listener's and the client's";
  const pid_t child = fork();
  if (child == 0) _exit(static_cast<int>(DescriptorsOfTestMemory()));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1) << "the listener's, which is not a client's business";
  ExpectWell(peers);
}

// Everybody who may read the arena reads every tenant's chunks.
TEST(TransportLocal, AnotherUserGetsSockets) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  Peers peers(kLocal, [] {
    Peers::Options options;
    options.edit_listen = [](ListenOptions& listen) { listen.wires = {"local", "tcp"}; };
    return options;
  }());
  EXPECT_EQ(peers.client()->info().wire, "local");
  const std::string socket = peers.dial_options().address.host;
  ASSERT_EQ(chmod(socket.c_str(), 0777), 0);
  ASSERT_EQ(chmod(std::filesystem::path(socket).parent_path().c_str(), 0755), 0);
  // The build may lie where others cannot go.
  TestDirectory directory;
  const std::string program = directory.path() + "/transport_child";
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  ASSERT_TRUE(std::filesystem::copy_file(PENSTOCK_TRANSPORT_CHILD, program));
  ChildProcess child({PENSTOCK_CONFINED, "--user", "65534", program, "send",
                      peers.dial_options().address.ToString(), "auto"});
  ASSERT_EQ(child.ReadLine(), "up");
  std::string wire;
  peers.server_loop().Run([&] { wire = peers.last_server()->info().wire; });
  EXPECT_EQ(wire, "tcp");
}

// As this system is, without anything of ours.
bool AChildMayReadItsParent() {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    int there = 0;
    const iovec to{&there, sizeof(there)}, from{&there, sizeof(there)};
    _exit(process_vm_readv(parent, &to, 1, &from, 1, 0) == sizeof(there) ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

struct Confinement {
  const char* name;
  std::vector<std::string> options;
  bool confined;
};

class TransportConfined : public testing::TestWithParam<Confinement> {};

// Where the daemon cannot read its client, the client's payload travels, and nobody notices.
TEST_P(TransportConfined, EveryByteComesBack) {
  TestDirectory directory;
  std::vector<std::string> command = {PENSTOCK_CONFINED};
  command.insert(command.end(), GetParam().options.begin(), GetParam().options.end());
  command.insert(command.end(),
                 {PENSTOCK_TRANSPORT_CHILD, "echo", directory.Resolve("unix"), "local"});
  ChildProcess child(command);
  const std::string address = child.ReadLine();
  if (address.empty()) {
    ASSERT_EQ(child.Finish(), 125);
    GTEST_SKIP() << "not permitted here";
  }
  auto loop = std::move(EventLoop::Start("client")).value();
  RecordingEvents events;
  GuardedBuffer source(4u << 20), back(4u << 20);
  FillPattern({source.data(), source.size()}, 3);
  events.destinations[{1, 0}] = {back.vec()};
  DialOptions options;
  options.address = Address::Parse(address).value();
  options.wire = "local";
  const auto session = DialAndWait(*loop, options, events);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  DoneLog sent;
  for (int round = 0; round < 3; ++round) {
    events.With([&] { events.arrived.clear(); });
    std::memset(back.data(), 0, back.size());
    loop->Run([&] {
      const iovec payload = source.vec();
      (*session)->SendData(1, {.length = source.size()}, {&payload, 1}, sent.For(1));
    });
    ASSERT_TRUE(events.WaitForBytes(1, 0, source.size()));
    EXPECT_EQ(std::memcmp(back.data(), source.data(), source.size()), 0);
  }
  for (const auto& [label, status] : sent.WaitFor(3)) EXPECT_TRUE(status.ok());
  bool refers = false;
  loop->Run([&] { refers = (*session)->refers(); });
  EXPECT_EQ(refers, !GetParam().confined && AChildMayReadItsParent());
  loop->Stop();
}

INSTANTIATE_TEST_SUITE_P(Ways, TransportConfined,
                         testing::Values(Confinement{"Not", {}, false},
                                         Confinement{"Seccomp", {"--deny-process-vm"}, true},
                                         Confinement{"Pids", {"--own-pids"}, true}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace penstock
