#include "common/transport/socket_owner.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace penstock {
namespace {

namespace fs = std::filesystem;

std::string FirstLine(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string DescribeProcess(const std::string& pid) {
  return fmt::format("pid {} ({})", pid, FirstLine(fs::path("/proc") / pid / "comm"));
}

// Inodes of the sockets that listen on `port`, on any host: which one is in the way is not worth
// telling apart in a message.
std::set<std::string> ListeningInodes(uint16_t port) {
  std::set<std::string> inodes;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    std::getline(in, line);  // Titles.
    while (std::getline(in, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
          timeout >> inode;
      constexpr std::string_view kListen = "0A";
      if (state == kListen && local.ends_with(fmt::format(":{:04X}", port))) inodes.insert(inode);
    }
  }
  return inodes;
}

bool HoldsOneOf(const fs::path& process, const std::set<std::string>& links) {
  std::error_code error;
  for (fs::directory_iterator it(process / "fd", error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;  // The descriptor may be gone by now.
    if (links.contains(fs::read_symlink(it->path(), ignored).string())) return true;
  }
  return false;
}

std::string UnixOwner(const SocketAddress& address) {
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid() || connect(probe.get(), address.get(), address.length) != 0) return "";
  ucred owner{};
  socklen_t size = sizeof(owner);
  if (getsockopt(probe.get(), SOL_SOCKET, SO_PEERCRED, &owner, &size) != 0) return "";
  return DescribeProcess(std::to_string(owner.pid));
}

}  // namespace

std::string DescribeSocketOwner(const SocketAddress& address) {
  if (address.family() == AF_UNIX) return UnixOwner(address);
  std::set<std::string> links;
  for (const std::string& inode : ListeningInodes(ToAddress(address).port)) {
    links.insert(fmt::format("socket:[{}]", inode));
  }
  if (links.empty()) return "";
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string pid = it->path().filename().string();
    if (pid.find_first_not_of("0123456789") != pid.npos) continue;
    if (HoldsOneOf(it->path(), links)) return DescribeProcess(pid);
  }
  return "";
}

}  // namespace penstock
