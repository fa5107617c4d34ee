// The least that moves bytes between two processes on one machine: blocking sockets, one stream, no
// protocol. What a transfer of ours is measured against.
//
//   bare_socket CHUNK_BYTES SECONDS FOOTPRINT_BYTES [unix]
//
// One process sends chunks from one end to the other of FOOTPRINT_BYTES and begins again; the other
// receives them into as much memory. Prints one line of JSON.

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

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const size_t chunk = std::strtoull(argv[1], nullptr, 10);
  const std::chrono::duration<double> patience(std::atof(argv[2]));
  const size_t footprint = std::strtoull(argv[3], nullptr, 10);
  int ends[2];
  if (argc > 4) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
  } else {
    TcpPair(ends);
  }
  const pid_t sender = fork();
  if (sender == 0) {
    close(ends[0]);
    Send(ends[1], chunk, footprint);
  }
  close(ends[1]);
  char* arena = Arena(footprint);
  unsigned long long bytes = 0;
  bool warm = false;
  Clock::time_point start = Clock::now();
  for (size_t at = 0;; at = at + 2 * chunk <= footprint ? at + chunk : 0) {
    for (size_t got = 0; got < chunk;) {
      const ssize_t n = read(ends[0], arena + at + got, chunk - got);
      if (n <= 0) return 1;
      got += static_cast<size_t>(n);
      bytes += static_cast<unsigned long long>(n);
    }
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
  close(ends[0]);
  waitpid(sender, nullptr, 0);
  std::printf("{\"gb_per_s\": %.4f}\n", static_cast<double>(bytes) / seconds / 1e9);
  return 0;
}
