#include "tests/integration/transport_peers.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>

#include "common/transport/pieces.h"

namespace penstock {
namespace {

constexpr std::chrono::seconds kPatience{30};
constexpr uint8_t kGuardByte = 0xa5;

uint64_t Mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  return x;
}

class ForwardingEvents final : public SessionEvents {
 public:
  explicit ForwardingEvents(RecordingEvents& to) : to_(to) {}
  void OnMessage(MessageType type, uint64_t request_id, ByteSpan body) override {
    to_.OnMessage(type, request_id, body);
  }
  bool Locate(uint64_t request_id, const DataHeader& header, Pieces& pieces) override {
    return to_.Locate(request_id, header, pieces);
  }
  void OnData(uint64_t request_id, const DataHeader& header, const Status& status) override {
    to_.OnData(request_id, header, status);
  }
  void OnDataFailed(uint64_t request_id, const DataHeader& header) override {
    to_.OnDataFailed(request_id, header);
  }
  void OnClosed(const Status& why) override { to_.OnClosed(why); }

 private:
  RecordingEvents& to_;
};

}  // namespace

std::vector<Road> Roads() {
  return {{"TcpV4", "tcp", "tcp://127.0.0.1:0"},
          {"TcpV6", "tcp", "tcp://[::1]:0"},
          {"TcpUnix", "tcp", "unix"},
          {"Local", "local", "unix"},
          {"UcxV4", "ucx", "tcp://127.0.0.1:0"},
          {"UcxUnix", "ucx", "unix"}};
}

std::unique_ptr<SessionEvents> Forwarding(RecordingEvents& to) {
  return std::make_unique<ForwardingEvents>(to);
}

void RecordingEvents::OnMessage(MessageType type, uint64_t request_id, ByteSpan body) {
  if (on_message) on_message(type, request_id, body);
  MutexLock lock(mu);
  EXPECT_TRUE(closed == 0 || !one_session);
  messages.push_back({type, request_id, std::string(AsText(body))});
  changed.SignalAll();
}

bool RecordingEvents::Locate(uint64_t request_id, const DataHeader& header, Pieces& pieces) {
  if (locate) return locate(request_id, header, pieces);
  MutexLock lock(mu);
  EXPECT_TRUE(closed == 0 || !one_session);
  const auto it = destinations.find({request_id, header.item});
  if (it == destinations.end()) return false;
  if (header.offset + header.length > *TotalBytes(it->second)) return false;
  PieceCursor cursor(it->second);
  cursor.Skip(header.offset);
  std::vector<iovec> found(it->second.size());
  uint64_t bytes = header.length;
  found.resize(cursor.Peek(bytes, found));
  pieces.assign(found.begin(), found.end());
  return true;
}

void RecordingEvents::OnData(uint64_t request_id, const DataHeader& header, const Status& status) {
  if (on_data) on_data(request_id, header, status);
  MutexLock lock(mu);
  EXPECT_TRUE(closed == 0 || !one_session);
  arrived.push_back({request_id, header, status});
  changed.SignalAll();
}

void RecordingEvents::OnDataFailed(uint64_t request_id, const DataHeader& header) {
  MutexLock lock(mu);
  EXPECT_TRUE(closed == 0 || !one_session);
  failed.push_back({request_id, header, Status::Ok()});
  changed.SignalAll();
}

void RecordingEvents::OnClosed(const Status& why) {
  MutexLock lock(mu);
  ++closed;
  closed_with = why;
  changed.SignalAll();
}

bool RecordingEvents::WaitFor(const std::function<bool()>& pred) {
  const auto until = MonotonicNow() + kPatience;
  MutexLock lock(mu);
  while (!pred()) {
    if (!changed.WaitUntil(mu, until)) return pred();
  }
  return true;
}

uint64_t RecordingEvents::LandedBytes(uint64_t request_id, uint32_t item) {
  uint64_t bytes = 0;
  for (const Arrived& one : arrived) {
    if (one.request_id == request_id && one.header.item == item && one.status.ok()) {
      bytes += one.header.length;
    }
  }
  return bytes;
}

bool RecordingEvents::WaitForBytes(uint64_t request_id, uint32_t item, uint64_t bytes) {
  return WaitFor([&] {
    if (bytes > 0) return LandedBytes(request_id, item) >= bytes;
    return std::any_of(arrived.begin(), arrived.end(), [&](const Arrived& one) {
      return one.request_id == request_id && one.header.item == item;
    });
  });
}

Status RecordingEvents::WaitClosed() {
  EXPECT_TRUE(WaitFor([this] { return closed > 0; }));
  MutexLock lock(mu);
  return closed_with;
}

void RecordingEvents::With(const std::function<void()>& fn) {
  MutexLock lock(mu);
  fn();
}

TestDirectory::TestDirectory() {
  char name[] = "/tmp/penstock-test-XXXXXX";
  path_ = mkdtemp(name);
}

TestDirectory::~TestDirectory() { std::filesystem::remove_all(path_); }

std::string TestDirectory::Resolve(const std::string& address) const {
  return address == "unix" ? "unix://" + path_ + "/socket" : address;
}

std::unique_ptr<MemoryRegistration> RegisterForTest(void* memory, size_t size) {
  auto registration = MemoryRegistration::Create({static_cast<std::byte*>(memory), size}, {});
  EXPECT_TRUE(registration.ok()) << registration.status().ToString();
  return std::move(registration).value();
}

Session::SendDone DoneLog::For(uint64_t label) {
  return [this, label](const Status& status) {
    MutexLock lock(mu_);
    done_.emplace(label, status);
    changed_.SignalAll();
  };
}

std::multimap<uint64_t, Status> DoneLog::WaitFor(size_t count) {
  const auto until = MonotonicNow() + kPatience;
  MutexLock lock(mu_);
  while (done_.size() < count && changed_.WaitUntil(mu_, until)) {
  }
  EXPECT_EQ(done_.size(), count);
  return done_;
}

size_t DoneLog::count() {
  MutexLock lock(mu_);
  return done_.size();
}

Peers::Peers(const Road& road, const Options& options) {
  other_server_events.one_session = false;
  client_loop_ = std::move(EventLoop::Start("client")).value();
  server_loop_ = std::move(EventLoop::Start("server")).value();
  ListenOptions listen;
  listen.addresses = {Address::Parse(directory_.Resolve(road.address)).value()};
  listen.wires = {road.wire};
  listen.incarnation = 77;
  listen.exported = TestMemory::Get().exported();
  listen.limits = options.server_limits;
  if (options.edit_listen) options.edit_listen(listen);
  std::promise<Session*> accepted;
  auto started = Listener::Start(listen, {server_loop_.get()},
                                 [this, &accepted, first = true](Session& session) mutable {
                                   auto& events = first ? server_events : other_server_events;
                                   last_server_ = &session;
                                   if (std::exchange(first, false)) accepted.set_value(&session);
                                   return Forwarding(events);
                                 });
  EXPECT_TRUE(started.ok()) << started.status().ToString();
  listener_ = std::move(started).value();
  dial_.address = listener_->addresses().at(0);
  dial_.wire = road.wire;
  dial_.streams = options.streams;
  dial_.incarnation = 99;
  dial_.tenant = options.tenant;
  dial_.client_name = "test";
  dial_.limits = options.client_limits;
  if (options.edit_dial) options.edit_dial(dial_);
  const auto session = DialMore(client_events, dial_);
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  if (!session.ok()) return;
  client_ = *session;
  server_ = accepted.get_future().get();
}

Peers::~Peers() {
  if (client_ != nullptr) {
    client_loop_->Run([this] {
      MutexLock lock(client_events.mu);
      if (client_events.closed == 0) client_->Close(Status::Ok());
    });
    EXPECT_FALSE(client_events.WaitClosed().ok());
  }
  listener_.reset();
  client_loop_->Stop();
  server_loop_->Stop();
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path())) << "the socket file is left";
  EXPECT_LE(client_events.closed, 1);
  EXPECT_LE(server_events.closed, 1);
}

Result<Session*> DialAndWait(EventLoop& loop, const DialOptions& options, RecordingEvents& events,
                             Duration patience) {
  std::promise<Result<Session*>> dialed;
  Dial(loop, options, Deadline::After(patience), events,
       [&dialed](Result<Session*> result) { dialed.set_value(std::move(result)); });
  return dialed.get_future().get();
}

Result<Session*> Peers::DialMore(RecordingEvents& events, const DialOptions& options) {
  return DialAndWait(*client_loop_, options, events, kPatience);
}

void Peers::OnClient(const std::function<void(Session&)>& fn) {
  client_loop_->Run([&] { fn(*client_); });
}

void Peers::OnServer(const std::function<void(Session&)>& fn) {
  server_loop_->Run([&] { fn(*server_); });
}

TestMemory& TestMemory::Get() {
  static auto* const memory = new TestMemory;
  return *memory;
}

TestMemory::TestMemory() : fd_(memfd_create("test-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  void* base = MAP_FAILED;
  if (fd_ >= 0 && ftruncate(fd_, kBytes) == 0 && fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
    base = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  }
  if (base == MAP_FAILED) std::abort();
  base_ = static_cast<std::byte*>(base);
}

std::byte* TestMemory::Take(size_t bytes) {
  const size_t at = taken_.fetch_add((bytes + 4095) / 4096 * 4096);
  if (at > kBytes - bytes) std::abort();
  return base_ + at;
}

void TestMemory::Return(std::byte* memory, size_t bytes) {
  fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, memory - base_,
            static_cast<off_t>((bytes + 4095) / 4096 * 4096));
}

GuardedBuffer::GuardedBuffer(size_t size, uint8_t fill)
    : memory_(TestMemory::Get().Take(size + 2 * kGuard), size + 2 * kGuard) {
  std::fill(memory_.begin(), memory_.end(), std::byte{kGuardByte});
  std::fill_n(data(), size, std::byte{fill});
  if (size > 0) registration_ = RegisterForTest(data(), size);
}

GuardedBuffer::~GuardedBuffer() {
  CheckGuards();
  registration_.reset();
  TestMemory::Get().Return(memory_.data(), memory_.size());
}

void GuardedBuffer::CheckGuards() const {
  const auto good = [](std::byte b) { return b == std::byte{kGuardByte}; };
  EXPECT_TRUE(std::all_of(memory_.begin(), memory_.begin() + kGuard, good));
  EXPECT_TRUE(std::all_of(memory_.end() - kGuard, memory_.end(), good));
}

void FillPattern(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = Mix(seed + i);
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, bytes.size() - i));
  }
}

size_t FirstWrong(std::span<const std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = Mix(seed + i);
    const size_t size = std::min<size_t>(8, bytes.size() - i);
    if (std::memcmp(bytes.data() + i, &word, size) != 0) return i;
  }
  return bytes.size();
}

}  // namespace penstock
