// The least that moves bytes between two processes on one machine: blocking sockets, one stream, no
// protocol. What a transfer of ours is measured against.
//
//   bare_socket CHUNK_BYTES SECONDS FOOTPRINT_BYTES [unix|memory]
//
// One process sends chunks from one end to the other of FOOTPRINT_BYTES and begins again; the other
// receives them into as much memory. With `memory` one process does both, with memcpy() and without
// a socket: what no transfer on this machine can beat. Prints one line of JSON.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;

char* Arena(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::exit(1);
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  return static_cast<char*>(memory);
}

// A connected pair of loopback TCP sockets.
void TcpPair(int (&ends)[2]) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const int one = 1;
  if (bind(listener, generic, length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, generic, &length) != 0) {
    std::exit(1);
  }
  ends[0] = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(ends[0], generic, length) != 0) std::exit(1);
  ends[1] = accept(listener, nullptr, nullptr);
  for (const int end : ends) setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  close(listener);
}

[[noreturn]] void Send(int socket, size_t chunk, size_t footprint) {
  char* arena = Arena(footprint);
  for (size_t at = 0;; at = at + 2 * chunk <= footprint ? at + chunk : 0) {
    for (size_t sent = 0; sent < chunk;) {
      const ssize_t n = write(socket, arena + at + sent, chunk - sent);
      if (n <= 0) _exit(0);
      sent += static_cast<size_t>(n);
    }
  }
}

// The way of one chunk into the receiver's memory.
class Way {
 public:
  Way(const std::string& kind, size_t chunk, size_t footprint) : chunk_(chunk) {
    if (kind == "memory") {
      source_ = Arena(footprint);
      return;
    }
    int ends[2];
    if (kind != "unix") {
      TcpPair(ends);
    } else if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
      std::exit(1);
    }
    sender_ = fork();
    if (sender_ == 0) {
      close(ends[0]);
      Send(ends[1], chunk, footprint);
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  ~Way() {
    if (source_ != nullptr) return;
    close(socket_);
    waitpid(sender_, nullptr, 0);
  }

  bool Take(char* arena, size_t at) const {
    if (source_ != nullptr) {
      std::memcpy(arena + at, source_ + at, chunk_);
      return true;
    }
    for (size_t got = 0; got < chunk_;) {
      const ssize_t n = read(socket_, arena + at + got, chunk_ - got);
      if (n <= 0) return false;
      got += static_cast<size_t>(n);
    }
    return true;
  }

 private:
  const size_t chunk_;
  char* source_ = nullptr;
  int socket_ = -1;
  pid_t sender_ = -1;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const size_t chunk = std::strtoull(argv[1], nullptr, 10);
  const std::chrono::duration<double> patience(std::atof(argv[2]));
  const size_t footprint = std::strtoull(argv[3], nullptr, 10);
  const Way way(argc > 4 ? argv[4] : "tcp", chunk, footprint);
  char* arena = Arena(footprint);
  unsigned long long bytes = 0;
  bool warm = false;
  Clock::time_point start = Clock::now();
  for (size_t at = 0;; at = at + 2 * chunk <= footprint ? at + chunk : 0) {
    if (!way.Take(arena, at)) return 1;
    bytes += chunk;
    const auto elapsed = Clock::now() - start;
    if (!warm && elapsed > patience / 5) {
      warm = true;
      bytes = 0;
      start = Clock::now();
    } else if (warm && elapsed > patience) {
      break;
    }
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::printf("{\"gb_per_s\": %.4f}\n", static_cast<double>(bytes) / seconds / 1e9);
  return 0;
}
