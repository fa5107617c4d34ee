#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "common/transport/endpoint.h"
#include "common/transport/ucx_context.h"

namespace penstock {
namespace {

WireReport DescribeUcx() {
  const auto context = UcxContext::Get({});
  if (!context.ok()) return {"ucx", false, context.status().ToString()};
  return {
      "ucx", true,
      fmt::format("UCX {}: {}", (*context)->version(), fmt::join((*context)->Transports(), ", "))};
}

}  // namespace

bool IsWireName(std::string_view name) {
  return name == "auto" || name == "local" || name == "tcp" || name == "ucx";
}

bool HasRdmaDevice() {
  std::error_code error;
  return !std::filesystem::is_empty("/sys/class/infiniband", error) && !error;
}

std::vector<WireReport> DescribeWires() {
  return {{"local", true, "one host: memory that the other side reads, over a Unix socket"},
          {"tcp", true, "plain sockets: TCP over IPv4 and IPv6, and Unix sockets"},
          DescribeUcx()};
}

}  // namespace penstock
