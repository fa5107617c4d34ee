#include "common/transport/listener.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/transport/exchange.h"

namespace penstock {
namespace {

constexpr int kBacklog = 1024;
constexpr int kAcceptsPerTurn = 16;
// Connections that have not said what they are. More wait in the kernel's backlog.
constexpr size_t kMaxPending = 1024;
// How long accepting rests when the process has no descriptor left.
constexpr std::chrono::milliseconds kRest{100};

bool IsWildcardV6(const Address& address) {
  return address.kind == Address::Kind::kTcp && address.host == "::";
}

// Accepts, and reads the first message of every connection. All but Start() and Stop() on the
// accepting loop.
class Acceptor : public std::enable_shared_from_this<Acceptor> {
 public:
  Acceptor(EventLoop& loop, Duration hello_timeout, std::shared_ptr<SessionMaker> maker)
      : loop_(loop), hello_timeout_(hello_timeout), maker_(std::move(maker)) {}

  Status Listen(const std::vector<Address>& addresses);
  Status Start();
  void Stop();
  std::vector<Address> addresses() const { return addresses_; }

 private:
  struct Pending {
    UniqueFd fd;
    HandshakeReader reader;
    EventLoop::TimerId timer = 0;
  };

  Status ListenOne(const Address& address, bool v6_only);
  void Accept(int listening);
  bool AcceptOne(int listening);
  void Pause();
  void Resume();
  void OnReady(int fd);
  void Drop(int fd, const Status& why);
  UniqueFd Take(int fd);
  void RemoveSocketFiles();

  EventLoop& loop_;
  const Duration hello_timeout_;
  const std::shared_ptr<SessionMaker> maker_;
  std::vector<UniqueFd> listening_;
  std::vector<Address> addresses_;
  struct SocketFile {
    std::string path;
    dev_t device;
    ino_t inode;
  };
  std::vector<SocketFile> files_;
  absl::flat_hash_map<int, std::unique_ptr<Pending>> pending_;
  bool paused_ = false;
  bool stopped_ = false;
};

Status Acceptor::Listen(const std::vector<Address>& addresses) {
  // [::] takes IPv4 too, unless an IPv4 address is listed beside it.
  const bool any_v4 = std::any_of(addresses.begin(), addresses.end(), [](const Address& address) {
    return address.kind == Address::Kind::kTcp && address.host.find(':') == std::string::npos;
  });
  for (const Address& address : addresses) {
    PENSTOCK_RETURN_IF_ERROR(ListenOne(address, !IsWildcardV6(address) || any_v4));
  }
  if (listening_.empty()) return Status(Code::kInvalidArgument, "no address to listen on");
  return Status::Ok();
}

Status Acceptor::ListenOne(const Address& address, bool v6_only) {
  const auto found = Resolve(address, /*passive=*/true);
  if (!found.ok()) {
    return Status(Code::kInvalidArgument, fmt::format("cannot listen on {}: {}", address.ToString(),
                                                      found.status().message()));
  }
  for (const SocketAddress& one : *found) {
    PENSTOCK_ASSIGN_OR_RETURN(UniqueFd fd, ListenOn(one, v6_only, kBacklog));
    PENSTOCK_ASSIGN_OR_RETURN(const SocketAddress real, LocalAddress(fd.get()));
    addresses_.push_back(ToAddress(real));
    struct stat info {};
    if (address.kind == Address::Kind::kUnix && lstat(address.host.c_str(), &info) == 0) {
      files_.push_back({address.host, info.st_dev, info.st_ino});
    }
    listening_.push_back(std::move(fd));
  }
  return Status::Ok();
}

Status Acceptor::Start() {
  Status status;
  loop_.Run([this, &status] {
    for (const UniqueFd& listening : listening_) {
      const int fd = listening.get();
      status =
          loop_.Watch(fd, EPOLLIN, [self = shared_from_this(), fd](uint32_t) { self->Accept(fd); });
      if (!status.ok()) return;
    }
  });
  return status;
}

void Acceptor::Stop() {
  loop_.Run([this] {
    stopped_ = true;
    for (const UniqueFd& fd : listening_) loop_.Unwatch(fd.get());
    std::vector<int> fds;
    for (const auto& [fd, pending] : pending_) fds.push_back(fd);
    for (const int fd : fds) Take(fd);
  });
  RemoveSocketFiles();
  listening_.clear();
}

void Acceptor::RemoveSocketFiles() {
  for (const SocketFile& file : files_) {
    struct stat info {};
    // A successor may have put its own there.
    if (lstat(file.path.c_str(), &info) != 0) continue;
    if (info.st_dev == file.device && info.st_ino == file.inode) unlink(file.path.c_str());
  }
  files_.clear();
}

void Acceptor::Accept(int listening) {
  for (int i = 0; i < kAcceptsPerTurn && !paused_ && !stopped_; ++i) {
    if (pending_.size() >= kMaxPending) return Pause();
    if (!AcceptOne(listening)) return;
  }
}

// False when there is nothing to accept now.
bool Acceptor::AcceptOne(int listening) {
  UniqueFd fd(accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    if (errno == ECONNABORTED || errno == EINTR) return true;
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      maker_->Refused(Status(Code::kResourceExhausted,
                             fmt::format("cannot accept (ulimit -n): {}", ErrnoText(errno))));
      Pause();
    }
    return false;
  }
  TuneStream(fd.get());
  const int number = fd.get();
  auto pending = std::make_unique<Pending>();
  pending->fd = std::move(fd);
  const auto self = shared_from_this();
  const Status status =
      loop_.Watch(number, EPOLLIN, [self, number](uint32_t) { self->OnReady(number); });
  if (!status.ok()) {
    maker_->Refused(status);
    return true;
  }
  pending->timer = loop_.After(hello_timeout_, [self, number] {
    self->Drop(number, Status(Code::kDeadlineExceeded, "no HELLO in time"));
  });
  pending_.emplace(number, std::move(pending));
  return true;
}

// The kernel would report the same connection again at once: look away for a while.
void Acceptor::Pause() {
  if (std::exchange(paused_, true)) return;
  for (const UniqueFd& fd : listening_) loop_.SetEvents(fd.get(), 0);
  loop_.After(kRest, [self = shared_from_this()] { self->Resume(); });
}

void Acceptor::Resume() {
  paused_ = false;
  if (stopped_) return;
  for (const UniqueFd& fd : listening_) loop_.SetEvents(fd.get(), EPOLLIN);
}

void Acceptor::OnReady(int fd) {
  const auto it = pending_.find(fd);
  if (it == pending_.end()) return;
  auto message = it->second->reader.Read(fd);
  if (!message.ok()) return Drop(fd, message.status());
  if (*message) maker_->OnHandshake(Take(fd), **message);
}

void Acceptor::Drop(int fd, const Status& why) {
  const Status status = why.Annotate(PeerName(fd));
  if (Take(fd).valid()) maker_->Refused(status);
}

UniqueFd Acceptor::Take(int fd) {
  const auto node = pending_.extract(fd);
  if (!node) return UniqueFd();
  loop_.CancelTimer(node.mapped()->timer);
  loop_.Unwatch(fd);
  return std::move(node.mapped()->fd);
}

class ListenerImpl final : public Listener {
 public:
  ListenerImpl(std::shared_ptr<Acceptor> acceptor, std::shared_ptr<SessionMaker> maker)
      : acceptor_(std::move(acceptor)),
        maker_(std::move(maker)),
        addresses_(acceptor_->addresses()) {}
  ~ListenerImpl() override { Stop(Status(Code::kDisconnected, "the daemon is shutting down")); }

  std::vector<Address> addresses() const override { return addresses_; }

  void Stop(const Status& why) override {
    MutexLock lock(mu_);
    if (std::exchange(stopped_, true)) return;
    acceptor_->Stop();
    maker_->Close(why);
  }

 private:
  const std::shared_ptr<Acceptor> acceptor_;
  const std::shared_ptr<SessionMaker> maker_;
  const std::vector<Address> addresses_;
  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

Result<std::unique_ptr<Listener>> Listener::Start(const ListenOptions& options,
                                                  std::vector<EventLoop*> loops,
                                                  OnSession on_session) {
  if (loops.empty()) return Status(Code::kInvalidArgument, "a listener needs a loop");
  EventLoop& accepting = *loops[0];
  auto maker = std::make_shared<SessionMaker>(options, std::move(loops), std::move(on_session));
  auto acceptor = std::make_shared<Acceptor>(accepting, options.limits.hello_timeout, maker);
  const Status listening = acceptor->Listen(options.addresses);
  auto listener = std::make_unique<ListenerImpl>(acceptor, maker);
  // On an error the listener's destructor undoes what was done.
  PENSTOCK_RETURN_IF_ERROR(listening);
  PENSTOCK_RETURN_IF_ERROR(acceptor->Start());
  return std::unique_ptr<Listener>(std::move(listener));
}

}  // namespace penstock
