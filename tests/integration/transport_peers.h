// Two ends of a session in one process, for tests: real loops, a real listener, a real dial.

#ifndef PENSTOCK_TESTS_INTEGRATION_TRANSPORT_PEERS_H_
#define PENSTOCK_TESTS_INTEGRATION_TRANSPORT_PEERS_H_

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/transport/endpoint.h"
#include "common/transport/memory_registration.h"

namespace penstock {

// Where a suite's sessions run.
struct Road {
  std::string name;     // For test names.
  std::string wire;     // "local", "tcp" or "ucx"
  std::string address;  // What the listener binds; "unix" makes a path of its own.
};

inline void PrintTo(const Road& road, std::ostream* out) { *out << road.name; }
// All that this build has.
std::vector<Road> Roads();

struct Arrived {
  uint64_t request_id = 0;
  DataHeader header;
  Status status;
};

// Records what a session tells. Fields behind `mu`; hooks run on the loop.
class RecordingEvents final : public SessionEvents {
 public:
  void OnMessage(MessageType type, uint64_t request_id, ByteSpan body) override;
  bool Locate(uint64_t request_id, const DataHeader& header, Pieces& pieces) override;
  void OnData(uint64_t request_id, const DataHeader& header, const Status& status) override;
  void OnDataFailed(uint64_t request_id, const DataHeader& header) override;
  void OnClosed(const Status& why) override;

  // Blocks until `pred` holds (asked under the lock after each event), at most 30 s. False then.
  bool WaitFor(const std::function<bool()>& pred);
  // Bytes of the item that have landed well.
  uint64_t LandedBytes(uint64_t request_id, uint32_t item);
  bool WaitForBytes(uint64_t request_id, uint32_t item, uint64_t bytes);
  Status WaitClosed();
  // Runs `fn` under the lock.
  void With(const std::function<void()>& fn);

  bool one_session = true;  // Nothing may come after OnClosed().
  // Set on the loop (OnClient(), OnServer()), or before there is a session.
  std::function<void(MessageType, uint64_t, ByteSpan)> on_message;
  std::function<bool(uint64_t, const DataHeader&, Pieces&)> locate;
  std::function<void(uint64_t, const DataHeader&, const Status&)> on_data;

  struct Message {
    MessageType type;
    uint64_t request_id;
    std::string body;
  };
  Mutex mu;
  CondVar changed;
  std::vector<Message> messages;
  std::vector<Arrived> arrived;
  std::vector<Arrived> failed;
  int closed = 0;
  Status closed_with;
  // Destinations by request and item: where offset 0 lies, and how much there is.
  std::map<std::pair<uint64_t, uint32_t>, std::vector<iovec>> destinations;
};

// Events that a listener may own, which end up in `to`.
std::unique_ptr<SessionEvents> Forwarding(RecordingEvents& to);

// Collects what SendDones were told, by a label. Thread-safe.
class DoneLog {
 public:
  Session::SendDone For(uint64_t label);
  // Blocks until `count` were called, at most 30 s, and returns them all.
  std::multimap<uint64_t, Status> WaitFor(size_t count);
  size_t count();

 private:
  Mutex mu_;
  CondVar changed_;
  std::multimap<uint64_t, Status> done_;
};

// A directory of the test's own, gone with it.
class TestDirectory {
 public:
  TestDirectory();
  ~TestDirectory();
  // A road's address: "unix" becomes a socket in here.
  std::string Resolve(const std::string& address) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Declare it behind the buffers that its sessions use: their memory is free when they have closed.
class Peers {
 public:
  struct Options {
    SessionLimits server_limits;
    SessionLimits client_limits;
    uint32_t streams = 2;
    std::string tenant = "default";
    std::function<void(ListenOptions&)> edit_listen;
    std::function<void(DialOptions&)> edit_dial;
  };

  explicit Peers(const Road& road) : Peers(road, Options()) {}
  Peers(const Road& road, const Options& options);
  ~Peers();

  // Another session to the same listener. `events` must live until it has closed.
  Result<Session*> DialMore(RecordingEvents& events, const DialOptions& options);
  DialOptions dial_options() const { return dial_; }

  // On the client's loop, on the server's loop: blocks until `fn` has run.
  void OnClient(const std::function<void(Session&)>& fn);
  void OnServer(const std::function<void(Session&)>& fn);

  EventLoop& client_loop() { return *client_loop_; }
  EventLoop& server_loop() { return *server_loop_; }
  Listener& listener() { return *listener_; }
  Session* client() { return client_; }
  Session* server() { return server_; }
  // The server's side of the session that came last. On the server's loop.
  Session* last_server() { return last_server_; }

  RecordingEvents client_events;
  RecordingEvents server_events;        // Of the first session.
  RecordingEvents other_server_events;  // Of all later ones together.

 private:
  std::unique_ptr<EventLoop> client_loop_;
  std::unique_ptr<EventLoop> server_loop_;
  TestDirectory directory_;
  std::unique_ptr<Listener> listener_;
  DialOptions dial_;
  Session* client_ = nullptr;
  Session* last_server_ = nullptr;
  Session* server_ = nullptr;  // The first; later ones get their own events.
};

// A file in memory from which every GuardedBuffer of the process is taken, so that a listener can
// export it.
class TestMemory {
 public:
  static TestMemory& Get();
  ExportedMemory exported() const { return {.fd = fd_, .base = base_, .bytes = kBytes}; }
  // Whole pages; zeros.
  std::byte* Take(size_t bytes);
  void Return(std::byte* memory, size_t bytes);

 private:
  static constexpr size_t kBytes = size_t{16} << 30;  // Of addresses; pages come with use.
  TestMemory();

  int fd_ = -1;
  std::byte* base_ = nullptr;
  std::atomic<size_t> taken_{0};
};

// Registered memory between two guards that are checked when it goes.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t size, uint8_t fill = 0);
  ~GuardedBuffer();
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  std::byte* data() { return memory_.data() + kGuard; }
  size_t size() const { return memory_.size() - 2 * kGuard; }
  iovec vec() { return {data(), size()}; }
  std::string_view text() { return {reinterpret_cast<const char*>(data()), size()}; }
  void CheckGuards() const;

 private:
  static constexpr size_t kGuard = 4096;
  const std::span<std::byte> memory_;
  std::unique_ptr<MemoryRegistration> registration_;
};

std::unique_ptr<MemoryRegistration> RegisterForTest(void* memory, size_t size);

// Bytes that depend on seed and position, so that a byte at the wrong place shows.
void FillPattern(std::span<std::byte> bytes, uint64_t seed);
// Position of the first byte that is not the pattern's, or bytes.size().
size_t FirstWrong(std::span<const std::byte> bytes, uint64_t seed);

// Dial(), and its outcome. `events` must live until the session has closed.
Result<Session*> DialAndWait(EventLoop& loop, const DialOptions& options, RecordingEvents& events,
                             Duration patience = std::chrono::seconds(20));

}  // namespace penstock

#endif  // PENSTOCK_TESTS_INTEGRATION_TRANSPORT_PEERS_H_
