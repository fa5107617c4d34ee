#include "common/transport/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "common/base/mutex.h"
#include "common/transport/socket_owner.h"

namespace penstock {
namespace {

// Name lookups under way in this process, each on a thread of its own.
constexpr int kMaxLookups = 64;

void SetOption(int fd, int level, int option, int value) {
  // Tuning only: a kernel that refuses it still works.
  setsockopt(fd, level, option, &value, sizeof(value));
}

SocketAddress UnixAddress(const std::string& path) {
  SocketAddress address;
  auto* un = reinterpret_cast<sockaddr_un*>(&address.storage);
  un->sun_family = AF_UNIX;
  const size_t size = std::min(path.size(), sizeof(un->sun_path) - 1);
  std::memcpy(un->sun_path, path.data(), size);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size + 1);
  return address;
}

std::string UnixPath(const SocketAddress& address) {
  const auto* un = reinterpret_cast<const sockaddr_un*>(&address.storage);
  constexpr size_t kPathAt = offsetof(sockaddr_un, sun_path);
  if (address.length <= kPathAt) return "";
  return std::string(un->sun_path, strnlen(un->sun_path, address.length - kPathAt));
}

// Looks up `address`; numbers only if `numeric`.
Result<std::vector<SocketAddress>> Lookup(const Address& address, bool passive, bool numeric) {
  if (address.kind == Address::Kind::kUnix) {
    return std::vector<SocketAddress>{UnixAddress(address.host)};
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0) | (numeric ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(Code::kDisconnected,
                  fmt::format("cannot look up {}: {}", address.host,
                              error == EAI_SYSTEM ? ErrnoText(errno) : gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (info->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress one;
    std::memcpy(&one.storage, info->ai_addr, info->ai_addrlen);
    one.length = info->ai_addrlen;
    addresses.push_back(one);
  }
  freeaddrinfo(found);
  if (addresses.empty()) {
    return Status(Code::kDisconnected, fmt::format("{} has no usable address", address.host));
  }
  return addresses;
}

// Shared by the thread that looks up a name and the loop that waits for it. The thread knows
// nothing of the loop, so that the loop may go first.
struct PendingLookup {
  explicit PendingLookup(UniqueFd fd) : ready(std::move(fd)) {}
  const UniqueFd ready;  // An eventfd.
  Mutex mu;
  Result<std::vector<SocketAddress>> result ABSL_GUARDED_BY(mu) = Status(Code::kInternal);
};

std::atomic<int> lookups_under_way{0};

Status StartLookup(const Address& address, const std::shared_ptr<PendingLookup>& pending) {
  if (lookups_under_way.fetch_add(1) >= kMaxLookups) {
    lookups_under_way.fetch_sub(1);
    return Status(Code::kBusy, fmt::format("{} name lookups are under way", kMaxLookups));
  }
  try {
    std::thread([address, pending] {
      auto result = Lookup(address, /*passive=*/false, /*numeric=*/false);
      {
        MutexLock lock(pending->mu);
        pending->result = std::move(result);
      }
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t n = write(pending->ready.get(), &one, sizeof(one));
      lookups_under_way.fetch_sub(1);
    }).detach();
  } catch (const std::system_error& e) {
    lookups_under_way.fetch_sub(1);
    return Status(Code::kResourceExhausted, fmt::format("cannot start a thread: {}", e.what()));
  }
  return Status::Ok();
}

// True if the socket file `address` is a leftover that nobody listens on, and is gone now.
bool RemoveStaleSocket(const SocketAddress& address) {
  const std::string path = UnixPath(address);
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) return false;
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid() || connect(probe.get(), address.get(), address.length) == 0) return false;
  return errno == ECONNREFUSED && unlink(path.c_str()) == 0;
}

Status CannotListen(const SocketAddress& address, int error) {
  const Code code = error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS
                        ? Code::kResourceExhausted
                        : Code::kIoError;
  std::string owner;
  if (error == EADDRINUSE) owner = DescribeSocketOwner(address);
  return Status(code, fmt::format("cannot listen on {}: {}{}{}", ToString(address),
                                  ErrnoText(error), owner.empty() ? "" : ", held by ", owner));
}

}  // namespace

void UniqueFd::Reset(int fd) {
  const int old = std::exchange(fd_, fd);
  if (old >= 0) close(old);
}

std::string ErrnoText(int error) {
  std::string text = fmt::format("{} ({})", std::generic_category().message(error), error);
  rlimit files{};
  if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &files) == 0) {
    text += fmt::format(", RLIMIT_NOFILE is {}", files.rlim_cur);
  }
  return text;
}

std::string ToString(const SocketAddress& address) {
  if (address.family() == AF_UNIX) {
    const std::string path = UnixPath(address);
    return path.empty() ? "unix:?" : fmt::format("unix://{}", path);
  }
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(address.get(), address.length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  if (address.family() == AF_INET6) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

Address ToAddress(const SocketAddress& address) {
  if (address.family() == AF_UNIX) return {Address::Kind::kUnix, UnixPath(address), 0};
  Address result;
  char host[NI_MAXHOST] = "";
  getnameinfo(address.get(), address.length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  result.host = host;
  if (address.family() == AF_INET6) {
    result.port = ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  } else {
    result.port = ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
  }
  return result;
}

bool IsNumeric(const Address& address) {
  return address.kind == Address::Kind::kUnix || Lookup(address, false, /*numeric=*/true).ok();
}

Result<std::vector<SocketAddress>> Resolve(const Address& address, bool passive) {
  auto numeric = Lookup(address, passive, /*numeric=*/true);
  if (numeric.ok()) return numeric;
  return Lookup(address, passive, /*numeric=*/false);
}

void ResolveAsync(EventLoop& loop, const Address& address, const Deadline& deadline,
                  std::function<void(Result<std::vector<SocketAddress>>)> done) {
  // Digits need no thread.
  if (auto numeric = Lookup(address, /*passive=*/false, /*numeric=*/true); numeric.ok()) {
    loop.Post([numeric, done = std::move(done)] { done(numeric); });
    return;
  }
  const auto pending = std::make_shared<PendingLookup>(UniqueFd(eventfd(0, EFD_CLOEXEC)));
  const int fd = pending->ready.get();
  Status status = fd < 0 ? Status(Code::kResourceExhausted, ErrnoText(errno)) : Status::Ok();
  if (status.ok()) status = StartLookup(address, pending);
  if (!status.ok()) {
    loop.Post([status, done = std::move(done)] { done(status); });
    return;
  }
  const auto timer = std::make_shared<EventLoop::TimerId>(0);
  const auto finish = [&loop, pending, timer, done](Result<std::vector<SocketAddress>> result) {
    const auto keep = done;  // Unwatch() and CancelTimer() may free this function.
    EventLoop& on = loop;
    on.CancelTimer(*timer);
    on.Unwatch(pending->ready.get());
    keep(std::move(result));
  };
  *timer = loop.After(deadline.Left(), [finish, host = address.host] {
    finish(Status(Code::kDeadlineExceeded, fmt::format("looking up {} takes too long", host)));
  });
  status = loop.Watch(fd, EPOLLIN, [pending, finish](uint32_t) {
    Result<std::vector<SocketAddress>> result = Status(Code::kInternal);
    {
      MutexLock lock(pending->mu);
      result = pending->result;
    }
    finish(std::move(result));
  });
  if (!status.ok()) {
    loop.CancelTimer(*timer);
    loop.Post([status, finish] { finish(status); });
  }
}

Result<UniqueFd> ListenOn(const SocketAddress& address, bool v6_only, int backlog) {
  UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return CannotListen(address, errno);
  if (address.family() != AF_UNIX) SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, v6_only);
  int error = bind(fd.get(), address.get(), address.length) == 0 ? 0 : errno;
  if (error == EADDRINUSE && address.family() == AF_UNIX && RemoveStaleSocket(address)) {
    error = bind(fd.get(), address.get(), address.length) == 0 ? 0 : errno;
  }
  if (error == 0 && listen(fd.get(), backlog) != 0) error = errno;
  if (error != 0) return CannotListen(address, error);
  return fd;
}

Result<UniqueFd> StartConnect(const SocketAddress& address) {
  UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) {
    return Status(Code::kResourceExhausted, fmt::format("no socket for {} (ulimit -n): {}",
                                                        ToString(address), ErrnoText(errno)));
  }
  TuneStream(fd.get());
  if (connect(fd.get(), address.get(), address.length) != 0 && errno != EINPROGRESS) {
    // Only a Unix socket does this, when more clients than its backlog wait.
    if (errno == EAGAIN) return Status(Code::kBusy, "the backlog is full");
    return Status(Code::kDisconnected,
                  fmt::format("cannot connect to {}: {}", ToString(address), ErrnoText(errno)));
  }
  return fd;
}

Status FinishConnect(int fd, const SocketAddress& address) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error == 0) return Status::Ok();
  return Status(Code::kDisconnected,
                fmt::format("cannot connect to {}: {}", ToString(address), ErrnoText(error)));
}

void TuneStream(int fd) {
  // Small messages must not wait for one another. Fails on Unix sockets, which have no delay.
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
}

Result<SocketAddress> LocalAddress(int fd) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (getsockname(fd, address.get(), &address.length) != 0) {
    return Status(Code::kIoError, fmt::format("getsockname: {}", ErrnoText(errno)));
  }
  return address;
}

std::string PeerName(int fd) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (getpeername(fd, address.get(), &address.length) != 0) return "?";
  if (address.family() != AF_UNIX) return ToString(address);
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return "unix:?";
  return fmt::format("unix:pid {} uid {}", credentials.pid, credentials.uid);
}

}  // namespace penstock
