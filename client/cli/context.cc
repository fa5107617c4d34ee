#include "client/cli/context.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "common/base/nearest.h"
#include "common/base/units.h"
#include "common/config/environment.h"
#include "common/config/option_table.h"

namespace penstock::cli {
namespace {

// The settings as options: one table for file, environment and command line.
OptionTable MakeTable(Settings& settings) {
  OptionTable table("penstock", "Talks to a penstockd.");
  table.Add("address", TextOption(&settings.address), "Where the daemon serves clients.");
  table.Add("admin_address", TextOption(&settings.admin_address),
            "Where the daemon is administered.");
  table.Add("wire", TextOption(&settings.wire), "auto, local, tcp or ucx.");
  table.Add("tenant", TextOption(&settings.tenant), "On whose behalf.");
  table.Add("namespace", TextOption(&settings.ns), "The name of a simple namespace.");
  table.Add("timeout", DurationOption(&settings.timeout), "The longest that one call may take.");
  return table;
}

constexpr std::string_view kVariables[] = {"PENSTOCK_ADDRESS",   "PENSTOCK_ADMIN_ADDRESS",
                                           "PENSTOCK_WIRE",      "PENSTOCK_TENANT",
                                           "PENSTOCK_NAMESPACE", "PENSTOCK_TIMEOUT"};

// Our own variables. The shell may well hold penstockd's, too: those are let by, but what looks
// like a mistyped one of ours is an error.
Result<EnvironmentVariables> OurVariables() {
  EnvironmentVariables ours;
  for (auto& [name, value] : EnvironmentWithPrefix(OptionTable::kPrefix)) {
    if (std::find(std::begin(kVariables), std::end(kVariables), name) != std::end(kVariables)) {
      ours.emplace_back(std::move(name), std::move(value));
      continue;
    }
    for (const std::string_view known : kVariables) {
      if (EditDistance(name, known) <= 1) {
        return Status(Code::kInvalidArgument,
                      fmt::format("unknown variable {}; did you mean {}?", name, known));
      }
    }
  }
  return ours;
}

// What somebody at a terminal can do, where that is not what an engine would.
std::string_view Advice(Code code) {
  switch (code) {
    case Code::kMiss:
      return "`penstock ns` shows what is stored; the name, --namespace and --tenant must be the "
             "same as when it was put";
    case Code::kDisconnected:
      return "is penstockd running? --address or PENSTOCK_ADDRESS says where; `penstock doctor` "
             "looks closer";
    case Code::kTooLarge:
      return "the daemon's store.max_chunk, by default a quarter of its arena, says how long a "
             "chunk may be";
    default:
      return CodeAdvice(code);
  }
}

// Why there is no session: most often that nobody is there, but not always.
Status NoSession(const std::string& address, const std::string& why) {
  const auto says = [&](std::string_view text) { return why.find(text) != std::string::npos; };
  const std::string text = fmt::format("no session with the daemon at {}: {}", address, why);
  if (says("no common wire")) {
    return Status(Code::kUnimplemented,
                  text + " (leave --wire out, or start the daemon with --wires=ucx,tcp)");
  }
  if (says("Permission denied")) {
    return Status(Code::kPermissionDenied,
                  text + " (at its Unix socket only the daemon's user and root may connect)");
  }
  if (says("not a Penstock frame")) {
    return Status(Code::kDisconnected,
                  text + " (another program's port, or that of the daemon's administration?)");
  }
  return Status(Code::kDisconnected, text);
}

}  // namespace

int ExitCodeOf(Code code) {
  switch (code) {
    case Code::kOk:
    case Code::kAlreadyExists:
      return kExitOk;
    case Code::kMiss:
    case Code::kFormatMismatch:
      return kExitMiss;
    case Code::kInvalidArgument:
      return kExitUsage;
    case Code::kDisconnected:
    case Code::kVersionSkew:
      return kExitUnreachable;
    case Code::kBusy:
    case Code::kAllPinned:
    case Code::kTooLarge:
    case Code::kPermissionDenied:
    case Code::kFenced:
      return kExitRefused;
    case Code::kChecksumMismatch:
      return kExitWrongBytes;
    case Code::kDeadlineExceeded:
      return kExitTimeout;
    default:
      return kExitFailure;
  }
}

Status Context::Load() {
  OptionTable table = MakeTable(settings_);
  OptionTable::Inputs inputs;
  PENSTOCK_ASSIGN_OR_RETURN(inputs.environment, OurVariables());
  const std::pair<const char*, const std::string*> flags[] = {
      {"config", &given_.config},
      {"address", &given_.address},
      {"admin_address", &given_.admin_address},
      {"wire", &given_.wire},
      {"tenant", &given_.tenant},
      {"namespace", &given_.ns},
      {"timeout", &given_.timeout}};
  for (const auto& [name, value] : flags) {
    if (!value->empty()) inputs.args.push_back(fmt::format("--{}={}", name, *value));
  }
  return table.Load(inputs).status();
}

Result<std::unique_ptr<Client>> Context::Connect(const std::string& wire) const {
  ClientOptions options;
  options.address = settings_.address;
  options.wire = wire.empty() ? settings_.wire : wire;
  options.tenant = settings_.tenant;
  options.connect_timeout = std::min<Duration>(settings_.timeout, options.connect_timeout);
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Create(options));
  // Long enough for a slow connection, short enough for a script: the first refusal is an answer.
  const Deadline patience =
      Deadline::After(std::min<Duration>(settings_.timeout, options.connect_timeout));
  if (client->WaitConnected(patience)) return client;
  return NoSession(options.address, client->stats().last_error);
}

Result<NamespaceDescriptor> Context::Descriptor() const {
  if (given_.descriptor_file.empty()) {
    NamespaceDescriptor descriptor;
    descriptor.tenant = settings_.tenant;
    descriptor.model = settings_.ns;
    descriptor.layout = "bytes.v1";
    return descriptor;
  }
  std::ifstream file(given_.descriptor_file);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.good() && !file.eof()) {
    return Status(Code::kInvalidArgument, fmt::format("cannot read {}", given_.descriptor_file));
  }
  auto descriptor = NamespaceDescriptor::FromJson(text);
  if (!descriptor.ok()) {
    return Status(Code::kInvalidArgument,
                  descriptor.status().Annotate(given_.descriptor_file).message());
  }
  if (descriptor->tenant.empty()) descriptor->tenant = settings_.tenant;
  return descriptor;
}

int Context::Print(const Json& result, const std::string& text) const {
  if (json()) {
    std::puts(result.dump().c_str());
  } else if (!text.empty()) {
    std::puts(text.c_str());
  }
  return kExitOk;
}

int Context::Fail(const Status& status, const Json& more) const {
  std::fprintf(stderr, "penstock: %s\n", status.ToString().c_str());
  if (const std::string_view advice = Advice(status.code()); !advice.empty()) {
    std::fprintf(stderr, "penstock: %.*s\n", static_cast<int>(advice.size()), advice.data());
  }
  if (json()) {
    Json result = ToJson(status);
    for (const auto& [name, value] : more.items()) {
      if (!result.contains(name)) result[name] = value;
    }
    std::puts(result.dump().c_str());
  }
  return ExitCodeOf(status.code());
}

Json ToJson(const Status& status) {
  Json json;
  json["ok"] = status.ok();
  json["code"] = std::string(CodeName(status.code()));
  if (!status.ok()) {
    json["message"] = status.message();
    json["advice"] = std::string(Advice(status.code()));
  }
  return json;
}

Progress::Progress() : on_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { Show(""); }

void Progress::Show(const std::string& text) {
  if (!on_) return;
  std::fprintf(stderr, "\r%s%*s", text.c_str(),
               static_cast<int>(std::max(shown_, text.size()) - text.size()), "");
  if (text.empty()) std::fputc('\r', stderr);
  std::fflush(stderr);
  shown_ = text.size();
}

std::string Table(const std::vector<std::string>& headings,
                  const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::string& heading : headings) widths.push_back(heading.size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) {
    if (!text.empty()) text += '\n';
    for (size_t i = 0; i < row.size(); ++i) {
      const bool last = i + 1 == row.size();
      text += last ? row[i] : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
  };
  add(headings);
  for (const auto& row : rows) add(row);
  return text;
}

}  // namespace penstock::cli
