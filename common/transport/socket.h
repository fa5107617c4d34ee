// Descriptors and sockets: owning them, making them, and saying in words why that failed.

#ifndef PENSTOCK_COMMON_TRANSPORT_SOCKET_H_
#define PENSTOCK_COMMON_TRANSPORT_SOCKET_H_

#include <sys/socket.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/transport/endpoint.h"

namespace penstock {

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

// An address that the kernel understands.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// "10.0.0.1:7420", "[::1]:7420", "unix:///run/penstock.sock"; "?" for what has no name.
std::string ToString(const SocketAddress& address);
// The same as an Address, for families that have one.
Address ToAddress(const SocketAddress& address);

// The text of an errno, "No such file or directory (2)", with the limit where one was met.
// Thread-safe.
std::string ErrnoText(int error);

// True if `address` needs no name service (a Unix path, or a host in digits).
bool IsNumeric(const Address& address);

// All kernel addresses of `address`, in the order in which they should be tried. Blocks while a
// name is looked up. `passive`: to listen on. Errors: kInvalidArgument, kDisconnected.
Result<std::vector<SocketAddress>> Resolve(const Address& address, bool passive);

// The same without blocking the loop: `done` is called on `loop`, exactly once unless the loop
// stops first. Lookups that outlive `deadline` end with kDeadlineExceeded.
void ResolveAsync(EventLoop& loop, const Address& address, const Deadline& deadline,
                  std::function<void(Result<std::vector<SocketAddress>>)> done);

// A listening, non-blocking socket. `v6_only` matters for [::] alone. A Unix socket file that
// nobody listens on is replaced. Errors: kIoError naming the address and, when it is taken and the
// kernel tells, its owner; kResourceExhausted.
Result<UniqueFd> ListenOn(const SocketAddress& address, bool v6_only, int backlog);

// A non-blocking socket with a connect() under way: writable when it is decided.
// Errors: kDisconnected, kResourceExhausted, kBusy (a Unix socket's backlog is full: try again).
Result<UniqueFd> StartConnect(const SocketAddress& address);
// What became of it. Errors: kDisconnected naming the address.
Status FinishConnect(int fd, const SocketAddress& address);

// What every session's socket gets: no delay. Ignored for Unix sockets.
void TuneStream(int fd);

Result<SocketAddress> LocalAddress(int fd);
// The other side: its address, or for a Unix socket "unix:pid N uid U".
std::string PeerName(int fd);

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_SOCKET_H_
