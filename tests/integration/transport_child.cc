// The other process of the transport tests: one that may be killed or frozen at any moment.
//
//   transport_child serve ADDRESS WIRE    listens, prints its address, and answers every FETCH with
//                                         an endless row of DATA frames of the same request
//   transport_child echo ADDRESS WIRE     listens, and sends every item of 4 MiB back
//   transport_child send ADDRESS WIRE     dials, prints "up", and sends DATA for request 1 for ever
//
// Ends when its input does.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <vector>

#include "common/transport/endpoint.h"
#include "common/transport/memory_registration.h"

namespace penstock {
namespace {

constexpr size_t kBytes = 4u << 20;
constexpr uint32_t kInFlight = 4;

// In a file, for the local wire.
ExportedMemory& Memory() {
  static ExportedMemory memory = [] {
    ExportedMemory made{.fd = memfd_create("transport-child", MFD_CLOEXEC | MFD_ALLOW_SEALING),
                        .base = nullptr,
                        .bytes = kBytes};
    if (made.fd < 0 || ftruncate(made.fd, kBytes) != 0) std::abort();
    if (fcntl(made.fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) std::abort();
    void* base = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd, 0);
    if (base == MAP_FAILED) std::abort();
    std::memset(base, 0x77, kBytes);
    made.base = static_cast<std::byte*>(base);
    return made;
  }();
  static const auto registration =
      MemoryRegistration::Create({const_cast<std::byte*>(memory.base), kBytes}, {});
  return memory;
}

// Sends one item after the other until the session ends.
void SendForEver(Session& session, uint64_t request, uint32_t item) {
  const iovec payload{const_cast<std::byte*>(Memory().base), kBytes};
  session.SendData(request, {.item = item, .length = kBytes}, {&payload, 1},
                   [&session, request, item](const Status& status) {
                     if (status.ok()) SendForEver(session, request, item + kInFlight);
                   });
}

class Events final : public SessionEvents {
 public:
  explicit Events(Session* session, bool echo = false) : session_(session), echo_(echo) {}
  void OnMessage(MessageType type, uint64_t request_id, ByteSpan) override {
    if (type != MessageType::kFetch) return;
    for (uint32_t i = 0; i < kInFlight; ++i) SendForEver(*session_, request_id, i);
  }
  bool Locate(uint64_t, const DataHeader& header, Pieces& pieces) override {
    if (echo_)
      pieces.push_back({const_cast<std::byte*>(Memory().base) + header.offset, header.length});
    return echo_;
  }
  void OnData(uint64_t request_id, const DataHeader& header, const Status& status) override {
    if (!status.ok() || (landed_ += header.length) < kBytes) return;
    landed_ = 0;
    const iovec payload{const_cast<std::byte*>(Memory().base), kBytes};
    session_->SendData(request_id, {.length = kBytes}, {&payload, 1}, [](const Status&) {});
  }
  void OnDataFailed(uint64_t, const DataHeader&) override {}
  void OnClosed(const Status&) override { closed.set_value(); }

  std::promise<void> closed;

 private:
  Session* const session_;
  const bool echo_;
  uint64_t landed_ = 0;
};

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void WaitForEndOfInput() {
  char c;
  while (read(STDIN_FILENO, &c, 1) > 0) {
  }
}

int Serve(EventLoop& loop, const Address& address, const std::string& wire, bool echo) {
  ListenOptions options;
  options.addresses = {address};
  options.wires = {wire};
  options.exported = Memory();
  auto listener = Listener::Start(options, {&loop}, [echo](Session& session) {
    return std::make_unique<Events>(&session, echo);
  });
  if (!listener.ok()) {
    std::fprintf(stderr, "%s\n", listener.status().ToString().c_str());
    return 1;
  }
  Say((*listener)->addresses()[0].ToString());
  WaitForEndOfInput();
  return 0;
}

int Send(EventLoop& loop, const Address& address, const std::string& wire) {
  DialOptions options;
  options.address = address;
  options.wire = wire;
  Events events(nullptr);
  std::promise<Result<Session*>> dialed;
  Dial(loop, options, Deadline::After(std::chrono::seconds(30)), events,
       [&dialed](Result<Session*> result) {
         if (result.ok()) {
           for (uint32_t i = 0; i < kInFlight; ++i) SendForEver(**result, 1, i);
         }
         dialed.set_value(std::move(result));
       });
  const auto session = dialed.get_future().get();
  if (!session.ok()) {
    std::fprintf(stderr, "%s\n", session.status().ToString().c_str());
    return 1;
  }
  Say("up");
  WaitForEndOfInput();
  loop.Run([&] { (*session)->Close(Status::Ok()); });
  events.closed.get_future().wait();
  return 0;
}

int Main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // A test that dies takes us along.
  if (argc != 4) return 2;
  const auto address = Address::Parse(argv[2]);
  auto loop = EventLoop::Start("child");
  if (!address.ok() || !loop.ok()) return 2;
  const std::string role = argv[1];
  const int status = role == "send" ? Send(**loop, *address, argv[3])
                                    : Serve(**loop, *address, argv[3], role == "echo");
  (*loop)->Stop();
  return status;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
