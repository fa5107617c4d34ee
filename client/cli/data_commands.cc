// put get stat drop pin match: what an application does, by hand.

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <iostream>
#include <iterator>

#include "client/cli/commands.h"
#include "common/base/units.h"
#include "common/transport/socket.h"

namespace penstock::cli {
namespace {

// Which chunks a command is about.
struct KeyArguments {
  std::string name;
  std::vector<std::string> names;
  std::vector<std::string> keys;  // 64 hexadecimal digits each.
  std::string token_file;         // Chunks of a prompt.
};

struct Session {
  std::unique_ptr<Client> client;
  Namespace ns;
};

Result<Session> Open(const Context& context) {
  PENSTOCK_ASSIGN_OR_RETURN(const NamespaceDescriptor descriptor, context.Descriptor());
  Session session;
  PENSTOCK_ASSIGN_OR_RETURN(session.client, context.Connect());
  PENSTOCK_ASSIGN_OR_RETURN(session.ns, session.client->OpenNamespace(descriptor));
  return session;
}

// Token ids separated by anything that is no digit: a JSON array, or one a line.
Result<std::vector<uint32_t>> ReadTokens(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Status(Code::kInvalidArgument, fmt::format("cannot read {}", path));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<uint32_t> tokens;
  for (size_t at = 0; at < text.size();) {
    if (text[at] < '0' || text[at] > '9') {
      ++at;
      continue;
    }
    uint64_t token = 0;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
      token = token * 10 + static_cast<uint64_t>(text[at] - '0');
      if (token > UINT32_MAX) {
        return Status(Code::kInvalidArgument, fmt::format("{}: a token id is too large", path));
      }
    }
    tokens.push_back(static_cast<uint32_t>(token));
  }
  return tokens;
}

// The keys of every whole chunk of a prompt.
Result<std::vector<ChunkKey>> PromptKeys(const Namespace& ns, const std::string& token_file) {
  const uint32_t chunk = ns.descriptor().chunk_tokens;
  if (chunk == 0) {
    return Status(Code::kInvalidArgument,
                  "--tokens needs a --descriptor that says chunk_tokens and block_tokens");
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens, ReadTokens(token_file));
  std::vector<ChunkKey> keys;
  for (size_t at = 0; at + chunk <= tokens.size(); at += chunk) {
    const auto parent = keys.empty() ? std::nullopt : std::optional(keys.back());
    keys.push_back(PrefixTokensKey(ns.fingerprint(), parent, std::span(tokens).subspan(at, chunk)));
  }
  if (keys.empty()) {
    return Status(Code::kInvalidArgument, fmt::format("{}: {} tokens are less than one chunk of {}",
                                                      token_file, tokens.size(), chunk));
  }
  return keys;
}

Result<std::vector<ChunkKey>> Keys(const Namespace& ns, const KeyArguments& arguments) {
  if (!arguments.token_file.empty()) return PromptKeys(ns, arguments.token_file);
  std::vector<ChunkKey> keys;
  if (!arguments.name.empty()) keys.push_back(NamedKey(ns.fingerprint(), arguments.name));
  for (const std::string& name : arguments.names) {
    keys.push_back(NamedKey(ns.fingerprint(), name));
  }
  for (const std::string& hex : arguments.keys) {
    PENSTOCK_ASSIGN_OR_RETURN(ChunkKey key, ChunkKey::FromHex(hex));
    keys.push_back(key);
  }
  if (keys.empty()) return Status(Code::kInvalidArgument, "no chunk is named");
  return keys;
}

Json Describe(const Namespace& ns, const ChunkKey& key) {
  return {
      {"ok", true}, {"code", "OK"}, {"key", key.ToHex()}, {"namespace", ns.fingerprint().ToHex()}};
}

// The status of an operation on one chunk.
Status Conclude(Operation& operation) {
  operation.Wait(Deadline::After(Deadline::kMax));
  PENSTOCK_RETURN_IF_ERROR(operation.status());
  return operation.items().empty() ? Status::Ok() : operation.items()[0].status;
}

Status NotStored(const Session& session, const KeyArguments& which) {
  const std::string what = which.name.empty() ? "such a chunk" : fmt::format("\"{}\"", which.name);
  return Status(Code::kMiss,
                fmt::format("no {} in the namespace {} ({}, tenant {})", what,
                            session.ns.fingerprint().ToShortHex(), session.ns.descriptor().model,
                            session.ns.descriptor().tenant));
}

Result<std::string> ReadValue(const std::string& path) {
  Progress progress;
  std::ifstream file;
  if (path != "-") file.open(path, std::ios::binary);
  if (path != "-" && !file) {
    return Status(Code::kInvalidArgument,
                  fmt::format("cannot read {}: {}", path, ErrnoText(errno)));
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string value;
  std::vector<char> buffer(4 << 20);
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0) {
    value.append(buffer.data(), static_cast<size_t>(in.gcount()));
    progress.Show(fmt::format("read {}", RoughBytes(value.size())));
  }
  if (in.bad()) {  // A directory, or a device that gave up: what came so far is not the value.
    return Status(Code::kInvalidArgument,
                  fmt::format("cannot read {}: {}", path, ErrnoText(errno)));
  }
  return value;
}

int Put(const Context& context, const KeyArguments& which, const std::string& path, bool replace,
        uint32_t tokens) {
  auto session = Open(context);
  if (!session.ok()) return context.Fail(session.status());
  const auto keys = Keys(session->ns, which);
  if (!keys.ok()) return context.Fail(keys.status());
  if (keys->size() != 1)
    return context.Fail(Status(Code::kInvalidArgument, "put stores one chunk"));
  auto value = ReadValue(path);
  if (!value.ok()) return context.Fail(value.status());
  StoreItem item;
  item.ns = session->ns;
  item.key = keys->front();
  item.pieces = {{value->data(), value->size()}};
  item.token_count = tokens;
  const MonotonicTime start = MonotonicNow();
  const auto store = session->client->Store({item}, replace, context.deadline());
  const Status status = Conclude(*store);
  Json result = Describe(session->ns, item.key);
  if (status.code() == Code::kAlreadyExists) {
    // Not an error of the daemon's, but not stored either: scripts must see it.
    context.Fail(Status(status.code(), "stored before; --replace would replace it"), result);
    return kExitRefused;
  }
  if (!status.ok()) return context.Fail(status);
  const double seconds = std::chrono::duration<double>(MonotonicNow() - start).count();
  result["bytes"] = value->size();
  result["seconds"] = seconds;
  return context.Print(result,
                       fmt::format("stored {} as {}", RoughBytes(value->size()), item.key.ToHex()));
}

int Get(const Context& context, const KeyArguments& which, const std::string& path) {
  if (context.json() && path == "-") {
    return context.Fail(Status(Code::kInvalidArgument, "--json needs --output FILE for the value"));
  }
  auto session = Open(context);
  if (!session.ok()) return context.Fail(session.status());
  const auto keys = Keys(session->ns, which);
  if (!keys.ok()) return context.Fail(keys.status());
  if (keys->size() != 1) return context.Fail(Status(Code::kInvalidArgument, "get reads one chunk"));
  const Deadline deadline = context.deadline();
  const MonotonicTime start = MonotonicNow();
  // One round trip when the guess is good, else a second one with the size that it tells.
  std::string value(1 << 20, '\0');
  std::shared_ptr<Operation> fetch;
  Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    fetch = session->client->Fetch({{session->ns, keys->front(), {{value.data(), value.size()}}}},
                                   {.accept_inexact = true}, deadline);
    status = Conclude(*fetch);
    if (status.code() != Code::kBufferTooSmall) break;
    value.resize(fetch->items()[0].bytes);
  }
  if (status.code() == Code::kMiss) return context.Fail(NotStored(*session, which));
  if (!status.ok()) return context.Fail(status);
  value.resize(fetch->items()[0].bytes);
  const double seconds = std::chrono::duration<double>(MonotonicNow() - start).count();
  std::ofstream file;
  if (path != "-") file.open(path, std::ios::binary | std::ios::trunc);
  std::ostream& out = path == "-" ? std::cout : file;
  const bool opened = !out.fail();
  if (!out.write(value.data(), static_cast<std::streamsize>(value.size())).flush()) {
    return context.Fail(Status(opened ? Code::kIoError : Code::kInvalidArgument,
                               fmt::format("cannot write {}: {}", path, ErrnoText(errno))));
  }
  Json result = Describe(session->ns, keys->front());
  result["bytes"] = value.size();
  result["tokens"] = fetch->items()[0].token_count;
  result["seconds"] = seconds;
  return context.Print(
      result, path == "-" ? "" : fmt::format("wrote {} to {}", RoughBytes(value.size()), path));
}

std::string SegmentKindName(SegmentKind kind) {
  static constexpr const char* kNames[] = {"opaque", "kv",    "k",        "v",
                                           "latent", "state", "scales",   "refinement",
                                           "sketch", "index", "residual", "delta"};
  const auto i = static_cast<size_t>(kind);
  return i < std::size(kNames) ? kNames[i] : fmt::format("kind-{}", i);
}

std::string TierName(Tier tier) {
  static constexpr const char* kNames[] = {"none", "gpu", "dram", "ssd", "remote"};
  const auto i = static_cast<size_t>(tier);
  return i < std::size(kNames) ? kNames[i] : "unknown";
}

int Stat(const Context& context, const KeyArguments& which) {
  auto session = Open(context);
  if (!session.ok()) return context.Fail(session.status());
  const auto keys = Keys(session->ns, which);
  if (!keys.ok()) return context.Fail(keys.status());
  const auto operation = session->client->Stat(session->ns, keys->front(), context.deadline());
  if (const Status status = Conclude(*operation); !status.ok()) return context.Fail(status);
  const StatReply& stat = operation->stat();
  Json result = Describe(session->ns, keys->front());
  result["bytes"] = stat.stored_bytes;
  result["tokens"] = stat.token_count;
  result["tier"] = TierName(stat.tier);
  result["pins"] = stat.pins;
  result["children"] = stat.children;
  result["idle_ms"] = stat.idle_ms;
  std::string text = fmt::format(
      "key       {}\nbytes     {}\ntokens    {}\ntier      {}\npins      {}\nchildren  {}\n"
      "idle      {}",
      keys->front().ToHex(), stat.stored_bytes, stat.token_count, TierName(stat.tier), stat.pins,
      stat.children, RoughDuration(std::chrono::milliseconds(stat.idle_ms)));
  if (const auto manifest = Manifest::Decode(stat.manifest); manifest.ok()) {
    result["flags"] = manifest->flags;
    result["tag"] = manifest->tag;
    for (const Segment& segment : manifest->segments) {
      result["segments"].push_back({{"kind", SegmentKindName(segment.kind)},
                                    {"codec", segment.codec},
                                    {"layer_first", segment.layer_first},
                                    {"layer_count", segment.layer_count},
                                    {"bytes", segment.stored_bytes},
                                    {"checksum", fmt::format("{:016x}", segment.checksum)}});
    }
    text += fmt::format("\nsegments  {}", manifest->segments.size());
  }
  return context.Print(result, text);
}

// drop, pin: one status a key.
int OnKeys(const Context& context, const KeyArguments& which, const std::string& done,
           const std::function<OperationPtr(Session&, std::vector<ChunkKey>)>& start) {
  auto session = Open(context);
  if (!session.ok()) return context.Fail(session.status());
  const auto keys = Keys(session->ns, which);
  if (!keys.ok()) return context.Fail(keys.status());
  const auto operation = start(*session, *keys);
  operation->Wait(Deadline::After(Deadline::kMax));
  if (!operation->status().ok()) return context.Fail(operation->status());
  Json items = Json::array();
  Status first;
  size_t good = 0;
  for (size_t i = 0; i < keys->size(); ++i) {
    const Status& status = operation->items()[i].status;
    items.push_back({{"key", (*keys)[i].ToHex()}, {"code", std::string(CodeName(status.code()))}});
    if (status.ok()) ++good;
    if (first.ok()) first = status;
  }
  if (!first.ok()) {
    std::string text = fmt::format("{} {} of {}", done, good, keys->size());
    if (!first.message().empty()) text += "; " + first.message();
    return context.Fail(Status(first.code(), text), {{"items", items}});
  }
  return context.Print({{"ok", true}, {"code", "OK"}, {"items", items}},
                       fmt::format("{} {} of {}", done, good, keys->size()));
}

int Match(const Context& context, const KeyArguments& which, Duration reserve) {
  auto session = Open(context);
  if (!session.ok()) return context.Fail(session.status());
  auto keys = Keys(session->ns, which);
  if (!keys.ok()) return context.Fail(keys.status());
  const size_t asked = keys->size();
  MatchGroup group;
  group.ns = session->ns;
  group.keys = *std::move(keys);
  const auto operation = session->client->Match({group}, reserve, context.deadline());
  if (const Status status = Conclude(*operation); !status.ok()) return context.Fail(status);
  const MatchOutcome& match = operation->match();
  const uint64_t tokens = uint64_t{match.chunks} * session->ns.descriptor().chunk_tokens;
  Json result = {{"ok", true},
                 {"code", match.chunks > 0 ? "OK" : "MISS"},
                 {"asked", asked},
                 {"chunks", match.chunks},
                 {"tokens", tokens},
                 {"bytes", match.bytes},
                 {"reservation", match.reservation}};
  result["details"] = Json::array();
  for (const MatchReply::Detail& detail : match.details) {
    result["details"].push_back({{"index", detail.index},
                                 {"key", group.keys[detail.index].ToHex()},
                                 {"bytes", detail.stored_bytes},
                                 {"tier", TierName(detail.tier)}});
  }
  context.Print(result, fmt::format("{} of {} chunks, {} tokens, {}", match.chunks, asked, tokens,
                                    RoughBytes(match.bytes)));
  return match.chunks > 0 ? kExitOk : kExitMiss;
}

void AddKeyArguments(CLI::App* command, const std::shared_ptr<KeyArguments>& which, bool many) {
  if (many) {
    command->add_option("names", which->names, "Names of objects")->type_name("NAME");
    command->add_option("--key", which->keys, "Keys, 64 hexadecimal digits each");
    command
        ->add_option("--tokens", which->token_file,
                     "File with the token ids of a prompt: its whole chunks")
        ->type_name("FILE");
  } else {
    command->add_option("name", which->name, "Name of the object")->type_name("NAME");
    command->add_option("--key", which->keys, "Its key instead, 64 hexadecimal digits")
        ->expected(1);
  }
}

// A duration given as text; parsed when the command runs.
int WithDuration(const Context& context, const std::string& option, const std::string& text,
                 const std::function<int(Duration)>& run) {
  const auto duration = ParseDuration(text);
  if (!duration.ok()) {
    return context.Fail(
        Status(Code::kInvalidArgument, duration.status().Annotate(option).message()));
  }
  return run(*duration);
}

void AddPutAndGet(CLI::App& app, Chosen& chosen) {
  const auto which = std::make_shared<KeyArguments>();
  const auto path = std::make_shared<std::string>("-");
  CLI::App* put = AddCommand(app, "put", "Stores a file under a name",
                             "  penstock put greeting hello.txt\n"
                             "  head -c 1M /dev/urandom | penstock put noise --replace --json");
  AddKeyArguments(put, which, false);
  const auto replace = std::make_shared<bool>(false);
  const auto tokens = std::make_shared<uint32_t>(0);
  put->add_option("file", *path, "The value; - is standard input")->type_name("FILE");
  put->add_flag("--replace", *replace, "Replace what is there (default: exit code 4)");
  put->add_option("--token-count", *tokens, "Tokens that the chunk stands for");
  put->callback([=, &chosen] {
    chosen.run = [=](Context& c) { return Put(c, *which, *path, *replace, *tokens); };
  });

  CLI::App* get = AddCommand(app, "get", "Writes a stored value to a file",
                             "  penstock get greeting\n"
                             "  penstock get noise --output noise.bin --json");
  AddKeyArguments(get, which, false);
  get->add_option("-o,--output", *path, "Where to; - is standard output")->type_name("FILE");
  get->callback([=, &chosen] { chosen.run = [=](Context& c) { return Get(c, *which, *path); }; });
}

void AddKeyCommands(CLI::App& app, Chosen& chosen) {
  const auto which = std::make_shared<KeyArguments>();
  CLI::App* stat = AddCommand(app, "stat", "Shows what is stored under a name",
                              "  penstock stat greeting\n  penstock stat --key 0123... --json");
  AddKeyArguments(stat, which, false);
  stat->callback([=, &chosen] { chosen.run = [=](Context& c) { return Stat(c, *which); }; });

  CLI::App* drop = AddCommand(app, "drop", "Forgets chunks", "  penstock drop greeting noise");
  AddKeyArguments(drop, which, true);
  drop->callback([=, &chosen] {
    chosen.run = [=](Context& c) {
      return OnKeys(c, *which, "dropped", [&c](Session& s, std::vector<ChunkKey> keys) {
        return s.client->Drop(s.ns, std::move(keys), c.deadline());
      });
    };
  });

  CLI::App* pin = AddCommand(app, "pin", "Keeps chunks from being evicted for a while",
                             "  penstock pin greeting --ttl 10m\n"
                             "  penstock pin greeting --ttl 0s   # unpin");
  AddKeyArguments(pin, which, true);
  const auto ttl = std::make_shared<std::string>("1h");
  pin->add_option("--ttl", *ttl, "How long; 0s unpins")->type_name("TIME")->capture_default_str();
  pin->callback([=, &chosen] {
    chosen.run = [=](Context& c) {
      return WithDuration(c, "--ttl", *ttl, [&](Duration d) {
        return OnKeys(c, *which, d == Duration::zero() ? "unpinned" : "pinned",
                      [&](Session& s, std::vector<ChunkKey> keys) {
                        return s.client->Pin(s.ns, std::move(keys), d, c.deadline());
                      });
      });
    };
  });
}

}  // namespace

void AddDataCommands(CLI::App& app, Chosen& chosen) {
  AddPutAndGet(app, chosen);
  AddKeyCommands(app, chosen);
  const auto which = std::make_shared<KeyArguments>();
  const auto reserve = std::make_shared<std::string>("0s");
  CLI::App* match = AddCommand(app, "match", "Finds the longest stored prefix of a list of chunks",
                               "  penstock match --descriptor model.json --tokens prompt.txt\n"
                               "  penstock match a b c --json");
  AddKeyArguments(match, which, true);
  match->add_option("--reserve", *reserve, "Keep what was found for so long; 0s does not")
      ->type_name("TIME")
      ->capture_default_str();
  match->callback([=, &chosen] {
    chosen.run = [=](Context& c) {
      return WithDuration(c, "--reserve", *reserve,
                          [&](Duration d) { return Match(c, *which, d); });
    };
  });
}

}  // namespace penstock::cli
