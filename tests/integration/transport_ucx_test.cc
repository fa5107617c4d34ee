// What only the ucx wire can get wrong: hostile peers that speak UCX, threads that poll, and shared
// memory that a dead process leaves behind.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <future>
#include <limits>
#include <list>
#include <set>
#include <sstream>

#include "common/transport/data_stream.h"
#include "common/transport/ucx_worker.h"
#include "tests/integration/child_process.h"
#include "tests/integration/raw_peer.h"
#include "tests/integration/transport_peers.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;

const Road kRoad{"UcxV4", "ucx", "tcp://127.0.0.1:0"};

// A peer that is past HELLO and sends what it likes on an endpoint of its own.
class RawUcx final : private UcxEndpointUser {
 public:
  explicit RawUcx(const Address& daemon) : control_(daemon) {
    loop_ = std::move(EventLoop::Start("raw")).value();
    Hello hello;
    hello.max_in_flight = 10;
    hello.software = "raw 1.0";
    hello.wires = {"ucx"};
    control_.Send(MessageType::kHello, 0, EncodeHello(hello));
    reply_ = ParseHelloReply(control_.Read()->body).value();
    EXPECT_EQ(reply_.status, 0) << reply_.message;
  }
  ~RawUcx() {
    std::promise<void> closed;
    loop_->Run([&] {
      if (endpoint_ == nullptr) return closed.set_value();
      endpoint_->worker->Close(endpoint_, [&] { closed.set_value(); });
    });
    closed.get_future().wait();
    loop_->Stop();
  }

  void Attach() { AttachWith(reply_.token); }
  void AttachWith(const SessionToken& token) {
    loop_->Run([&] {
      UcxWorker* const worker = UcxWorker::OfThisLoop(*loop_, {}).value();
      const Address address{Address::Kind::kTcp, "127.0.0.1", reply_.ucx_port};
      endpoint_ = worker->Connect(Resolve(address, false)->front(), token, *this).value();
    });
  }
  void WaitAttached() { attached_.get_future().wait(); }
  Status WaitError() { return error_.get_future().get(); }

  void Send(std::vector<std::byte> header, size_t payload) {
    loop_->Run([&] {
      const UcxLibrary& ucx = endpoint_->worker->ucx();
      kept_.push_back(std::move(header));
      kept_.emplace_back(payload);
      const auto& body = kept_.back();
      const auto& head = *std::prev(std::prev(kept_.end()));
      ucp_request_param_t param{};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK;
      param.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
      param.cb.send = [](void* request, ucs_status_t, void*) {
        UcxLibrary::Load().value()->ucp_request_free(request);
      };
      (void)ucx.ucp_am_send_nbx(endpoint_->handle, static_cast<unsigned>(MessageType::kData),
                                head.data(), head.size(), body.data(), body.size(), &param);
    });
  }

  RawPeer& control() { return control_; }
  const HelloReply& reply() const { return reply_; }

 private:
  bool OnUcxData(ByteSpan, void*, size_t, bool) override { return false; }
  void OnUcxAttached() override { attached_.set_value(); }
  void OnUcxError(const Status& why) override {
    if (!std::exchange(failed_, true)) error_.set_value(why);
  }

  RawPeer control_;
  std::unique_ptr<EventLoop> loop_;
  HelloReply reply_;
  UcxEndpoint* endpoint_ = nullptr;
  std::list<std::vector<std::byte>> kept_;  // What UCX may still read.
  std::promise<void> attached_;
  std::promise<Status> error_;
  bool failed_ = false;
};

void ExpectWell(Peers& peers) {
  size_t before = 0;
  peers.server_events.With([&] { before = peers.server_events.arrived.size(); });
  GuardedBuffer source(100'000), destination(100'000);
  FillPattern({source.data(), source.size()}, 5);
  peers.server_events.With([&] { peers.server_events.destinations[{9, 9}] = {destination.vec()}; });
  const iovec payload = source.vec();
  std::promise<void> sent;  // Until then the bytes are the session's.
  peers.OnClient([&](Session& session) {
    session.SendData(9, {.item = 9, .length = source.size()}, {&payload, 1},
                     [&](const Status&) { sent.set_value(); });
  });
  const bool arrived =
      peers.server_events.WaitFor([&] { return peers.server_events.arrived.size() > before; });
  sent.get_future().wait();
  ASSERT_TRUE(arrived);
  EXPECT_EQ(FirstWrong({destination.data(), destination.size()}, 5), destination.size());
}

TEST(TransportUcx, BrokenDataEndsItsSessionOnly) {
  Peers::Options options;
  options.server_limits.max_chunk_bytes = 1u << 20;
  Peers peers(kRoad, options);
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  struct Bad {
    std::vector<std::byte> header;
    size_t payload;
    Code code;
  };
  std::vector<Bad> bad;
  const auto add = [&](const DataHeader& header, size_t payload, Code code) {
    const auto bytes = EncodeDataHeader(1, header);
    bad.push_back({{bytes.begin(), bytes.end()}, payload, code});
  };
  add({.length = 8}, 7, Code::kCorruptMessage);  // Not what follows.
  add({.length = 8}, 9, Code::kCorruptMessage);
  add({.offset = kMax, .length = 2}, 2, Code::kCorruptMessage);
  add({.length = (1u << 20) + 1}, (1u << 20) + 1, Code::kTooLarge);
  add({.status = 3, .length = 8}, 8, Code::kCorruptMessage);
  bad.push_back({std::vector<std::byte>(5), 0, Code::kCorruptMessage});
  bad.push_back({std::vector<std::byte>(300, std::byte{0xff}), 10, Code::kCorruptMessage});
  bad.push_back({{}, 100, Code::kCorruptMessage});
  int sessions = 0;
  for (const Bad& one : bad) {
    RawUcx raw(peers.listener().addresses()[0]);
    raw.Attach();
    raw.WaitAttached();
    raw.Send(one.header, one.payload);
    EXPECT_TRUE(raw.control().ReadToEnd());
    ++sessions;
    auto& events = peers.other_server_events;
    ASSERT_TRUE(events.WaitFor([&] { return events.closed == sessions; }));
    EXPECT_EQ(events.closed_with.code(), one.code) << sessions << events.closed_with.ToString();
  }
  ExpectWell(peers);
}

TEST(TransportUcx, AnEndpointThatDoesNotKnowTheTokenIsHungUpOn) {
  Peers peers(kRoad);
  RawUcx raw(peers.listener().addresses()[0]);
  SessionToken wrong = raw.reply().token;
  wrong[3] ^= 1;
  raw.AttachWith(wrong);
  EXPECT_EQ(raw.WaitError().code(), Code::kDisconnected);
  EXPECT_TRUE(raw.control().ReadToEnd());  // Nobody attached in time.
  ExpectWell(peers);
}

// Every TCP port that this process listens on, of UCX's own making or ours.
std::set<uint16_t> ListeningPorts() {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error);
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::set<uint16_t> ports;
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, skipped, inode;
    fields >> slot >> local >> remote >> state;
    for (int i = 0; i < 5; ++i) fields >> skipped;
    fields >> inode;
    if (state != "0A" || !inodes.contains(inode)) continue;
    ports.insert(static_cast<uint16_t>(std::stoul(local.substr(local.find(':') + 1), nullptr, 16)));
  }
  return ports;
}

// Not on the port for connections: what UCX 1.13 does there is in docs/decisions/0008.
TEST(TransportUcx, GarbageOnThePortsForDataHurtsNobody) {
  Peers peers(kRoad);
  RawUcx session(peers.listener().addresses()[0]);
  session.Attach();
  session.WaitAttached();
  std::set<uint16_t> ports = ListeningPorts();
  EXPECT_EQ(ports.erase(session.reply().ucx_port), 1u);
  EXPECT_EQ(ports.erase(peers.listener().addresses()[0].port), 1u);
  EXPECT_FALSE(ports.empty());
  for (const uint16_t port : ports) {
    for (const std::string& garbage :
         {std::string("GET / HTTP/1.1\r\nHost: penstock\r\n\r\n"), std::string(100, '\0'),
          std::string(100'000, '\xff'), std::string()}) {
      const SocketAddress address =
          Resolve({Address::Kind::kTcp, "127.0.0.1", port}, /*passive=*/false)->front();
      UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (connect(fd.get(), address.get(), address.length) != 0) continue;  // Not on this device.
      RawPeer raw(std::move(fd));
      raw.Send(AsBytes(garbage));
      raw.HalfClose();
      EXPECT_TRUE(raw.ReadToEnd());
    }
  }
  ExpectWell(peers);
}

double CpuSeconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

TEST(TransportUcx, SessionsAtRestUseNoProcessor) {
  Peers peers(kRoad);
  ExpectWell(peers);
  std::promise<double> later;
  peers.client_loop().Run([&] {
    // What the transfers left to do is done by then.
    peers.client_loop().After(milliseconds(300), [&] {
      peers.client_loop().After(milliseconds(2000), [&, before = CpuSeconds()] {
        later.set_value(CpuSeconds() - before);
      });
    });
  });
  const double used = later.get_future().get();
  std::printf("%.2f ms of processor time in 2 s\n", used * 1e3);
  EXPECT_LT(used, 0.05);
  ExpectWell(peers);
}

std::set<std::string> SharedMemoryFiles() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("ucx_")) names.insert(name);
  }
  return names;
}

// System V segments that `pid` made.
size_t SegmentsOf(pid_t pid) {
  std::ifstream table("/proc/sysvipc/shm");
  std::string line;
  std::getline(table, line);  // key shmid perms size cpid ...
  size_t count = 0;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    long long key = 0, id = 0, perms = 0, size = 0, creator = 0;
    fields >> key >> id >> perms >> size >> creator;
    count += creator == pid ? 1 : 0;
  }
  return count;
}

// Where leaks are looked for, this is what finds a session that nobody frees.
TEST(TransportUcx, AClientThatEndsWhileItConnectsLeavesNothing) {
  // A listening socket whose accept() waits, and its port.
  const auto listen = [](uint16_t& port) {
    UniqueFd fd = ListenOn(Resolve({Address::Kind::kTcp, "127.0.0.1", 0}, true)->front(),
                           /*v6_only=*/false, /*backlog=*/4)
                      .value();
    fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    port = ToAddress(LocalAddress(fd.get()).value()).port;
    return fd;
  };
  uint16_t port = 0, silent_port = 0;
  const UniqueFd control = listen(port), silent = listen(silent_port);
  auto loop = std::move(EventLoop::Start("client")).value();
  RecordingEvents events;
  DialOptions options;
  options.address = {Address::Kind::kTcp, "127.0.0.1", port};
  options.wire = "ucx";
  loop->Run([&] {
    Dial(*loop, options, Deadline::After(std::chrono::hours(1)), events,
         [](const Result<Session*>&) { ADD_FAILURE() << "nobody answers"; });
  });
  UniqueFd accepted(accept(control.get(), nullptr, nullptr));
  ASSERT_TRUE(accepted.valid());
  RawPeer daemon(std::move(accepted));
  ASSERT_TRUE(daemon.Read().has_value());
  HelloReply reply;
  reply.version = kProtocolVersion;
  reply.max_in_flight = 10;
  reply.max_chunk_bytes = 1u << 20;
  reply.wire = "ucx";
  reply.ucx_port = silent_port;
  daemon.Send(MessageType::kHelloReply, 0, EncodeHelloReply(reply));
  const UniqueFd reached(accept(silent.get(), nullptr, nullptr));  // UCX is on its way.
  EXPECT_TRUE(reached.valid());
  loop->Stop();
}

TEST(TransportUcx, AKilledProcessLeavesNoSharedMemory) {
  const auto before = SharedMemoryFiles();
  std::vector<pid_t> dead;
  for (int round = 0; round < 3; ++round) {
    ChildProcess child({PENSTOCK_TRANSPORT_CHILD, "serve", "tcp://127.0.0.1:0", "ucx"});
    auto loop = std::move(EventLoop::Start("client")).value();
    RecordingEvents events;
    GuardedBuffer destination(4u << 20);
    events.locate = [&](uint64_t, const DataHeader& header, Pieces& pieces) {
      pieces.push_back({destination.data() + header.offset, header.length});
      return true;
    };
    DialOptions options;
    options.address = Address::Parse(child.ReadLine()).value();
    options.wire = "ucx";
    const auto session = DialAndWait(*loop, options, events);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    loop->Run([&] { (*session)->SendMessage(MessageType::kFetch, 1, {}); });
    ASSERT_TRUE(events.WaitFor([&] { return events.arrived.size() > 3; }));
    child.Signal(SIGKILL);
    EXPECT_EQ(events.WaitClosed().code(), Code::kDisconnected);
    EXPECT_NE(child.Finish(), 0);
    loop->Stop();  // And with it what we had mapped of the child's.
    dead.push_back(child.pid());
  }
  for (const pid_t pid : dead) EXPECT_EQ(SegmentsOf(pid), 0u);
  EXPECT_EQ(SharedMemoryFiles(), before);
}

}  // namespace
}  // namespace penstock
