#include <fmt/format.h>
#include <sys/un.h>

#include <charconv>

#include "common/transport/endpoint.h"

namespace penstock {
namespace {

constexpr std::string_view kExpected =
    "expected tcp://host:port, tcp://[v6]:port, host:port or unix:///path";

Status Bad(std::string_view text, std::string_view why) {
  return Status(Code::kInvalidArgument,
                fmt::format("address \"{}\": {}; {}", text, why, kExpected));
}

Result<uint16_t> ParsePort(std::string_view text, std::string_view port) {
  uint16_t number = 0;
  const char* end = port.data() + port.size();
  const auto [stop, error] = std::from_chars(port.data(), end, number);
  if (port.empty() || error != std::errc() || stop != end) {
    return Bad(text, fmt::format("\"{}\" is not a port (0 to 65535)", port));
  }
  return number;
}

Result<Address> ParseUnix(std::string_view text, std::string_view path) {
  if (path.empty() || path[0] != '/') return Bad(text, "the path of a Unix socket is absolute");
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return Bad(text, fmt::format("the path of a Unix socket has at most {} bytes",
                                 sizeof(sockaddr_un::sun_path) - 1));
  }
  if (path.find('\0') != path.npos) return Bad(text, "the path has a zero byte");
  return Address{Address::Kind::kUnix, std::string(path), 0};
}

}  // namespace

Result<Address> Address::Parse(std::string_view text) {
  std::string_view rest = text;
  if (constexpr std::string_view kUnix = "unix://"; rest.starts_with(kUnix)) {
    return ParseUnix(text, rest.substr(kUnix.size()));
  }
  if (constexpr std::string_view kTcp = "tcp://"; rest.starts_with(kTcp)) {
    rest.remove_prefix(kTcp.size());
  } else if (rest.find("://") != rest.npos) {
    return Bad(text, "unknown scheme");
  }
  const size_t colon = rest.rfind(':');
  if (colon == rest.npos) return Bad(text, "the port is missing");
  std::string_view host = rest.substr(0, colon);
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return Bad(text, "']' is missing");
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != host.npos) {
    return Bad(text, "an IPv6 address goes into brackets");
  }
  if (host.empty()) return Bad(text, "the host is missing");
  if (host.find_first_of("[]/ \t\r\n") != host.npos || host.find('\0') != host.npos) {
    return Bad(text, "the host has characters that no host has");
  }
  PENSTOCK_ASSIGN_OR_RETURN(const uint16_t port, ParsePort(text, rest.substr(colon + 1)));
  return Address{Kind::kTcp, std::string(host), port};
}

std::string Address::ToString() const {
  if (kind == Kind::kUnix) return fmt::format("unix://{}", host);
  if (host.find(':') != host.npos) return fmt::format("tcp://[{}]:{}", host, port);
  return fmt::format("tcp://{}:{}", host, port);
}

}  // namespace penstock
