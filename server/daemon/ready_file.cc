#include "server/daemon/ready_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <system_error>

#include "common/transport/socket.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace penstock {
namespace {

Status Failure(const char* doing, const std::string& path) {
  return Status(Code::kIoError,
                fmt::format("the ready file: {} {}: {}", doing, path, ErrnoText(errno)));
}

}  // namespace

std::string ReadyJson(const DaemonFacts& facts) {
  const nlohmann::ordered_json json = {{"pid", getpid()},
                                       {"incarnation", fmt::format("{:016x}", facts.incarnation)},
                                       {"version", facts.version},
                                       {"addresses", facts.addresses},
                                       {"admin", facts.admin_address},
                                       {"metrics", facts.metrics_address}};
  return json.dump();
}

Status WriteReadyFile(const std::string& path, const DaemonFacts& facts) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  const std::string text = ReadyJson(facts) + "\n";
  const UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return Failure("creating", temporary);
  const bool written =
      write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!written || rename(temporary.c_str(), path.c_str()) != 0) {
    Status status = Failure(written ? "renaming" : "writing", temporary);
    unlink(temporary.c_str());
    return status;
  }
  return Status::Ok();
}

void RemoveReadyFile(const std::string& path, const DaemonFacts& facts) {
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  if (text == ReadyJson(facts) + "\n") unlink(path.c_str());
}

}  // namespace penstock
