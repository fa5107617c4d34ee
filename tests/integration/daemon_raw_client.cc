#include "tests/integration/daemon_raw_client.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "common/format/checksum.h"
#include "common/format/manifest.h"
#include "common/format/verify.h"

namespace penstock {

NamespaceDescriptor TestNamespace(const std::string& model) {
  NamespaceDescriptor descriptor;
  descriptor.tenant = "default";
  descriptor.model = model;
  descriptor.block_tokens = 16;
  descriptor.chunk_tokens = 16;
  return descriptor;
}

// Lives until the session's OnClosed() and the RawClient's end, whichever is later.
class RawClient::Events final : public SessionEvents, public std::enable_shared_from_this<Events> {
 public:
  void OnMessage(MessageType type, uint64_t request_id, ByteSpan body) override {
    Answer answer{.type = type};
    if (type == MessageType::kReply) {
      const auto decoded = DecodeReply(body);
      if (decoded.ok()) {
        answer.head = decoded->head;
        answer.rest.assign(decoded->rest.begin(), decoded->rest.end());
      } else {
        answer.head.status = decoded.status().code();
      }
    } else {
      answer.rest.assign(body.begin(), body.end());
    }
    MutexLock lock(mu);
    answers[request_id].push_back(std::move(answer));
    changed.SignalAll();
  }

  explicit Events(std::function<void()> before_data) : before_data_(std::move(before_data)) {}

  bool Locate(uint64_t request_id, const DataHeader& header, Pieces& pieces) override {
    if (before_data_) before_data_();
    MutexLock lock(mu);
    const auto it = buffers.find({request_id, header.item});
    if (it == buffers.end() || header.offset > it->second.size() ||
        header.length > it->second.size() - header.offset) {
      return false;
    }
    pieces.push_back({it->second.data() + header.offset, header.length});
    return true;
  }

  void OnData(uint64_t request_id, const DataHeader& header, const Status& status) override {
    MutexLock lock(mu);
    if (status.ok()) {
      arrived[{request_id, header.item}] += header.length;
    } else {
      failed[{request_id, header.item}] = status;
    }
    changed.SignalAll();
  }

  void OnDataFailed(uint64_t request_id, const DataHeader& header) override {
    MutexLock lock(mu);
    failed[{request_id, header.item}] = Status(CodeFromWire(header.status));
    changed.SignalAll();
  }

  void OnClosed(const Status& why) override {
    const auto keep = std::move(self);  // Until the lock is released.
    MutexLock lock(mu);
    session = nullptr;
    closed = true;
    closed_with = why;
    changed.SignalAll();
  }

  using ItemId = std::pair<uint64_t, uint32_t>;
  Mutex mu;
  CondVar changed;
  std::map<uint64_t, std::deque<Answer>> answers ABSL_GUARDED_BY(mu);
  std::map<ItemId, std::string> buffers ABSL_GUARDED_BY(mu);
  std::map<ItemId, uint64_t> arrived ABSL_GUARDED_BY(mu);
  std::map<ItemId, Status> failed ABSL_GUARDED_BY(mu);
  bool closed ABSL_GUARDED_BY(mu) = false;
  bool dialed ABSL_GUARDED_BY(mu) = false;
  Status closed_with ABSL_GUARDED_BY(mu);
  // On the loop only.
  Session* session = nullptr;
  std::shared_ptr<Events> self;

 private:
  const std::function<void()> before_data_;
};

RawClient::RawClient(EventLoop* loop, std::unique_ptr<EventLoop> own_loop, const Options& options)
    : own_loop_(std::move(own_loop)),
      loop_(*loop),
      patience_(options.patience),
      fingerprint_(options.ns.ComputeFingerprint()),
      events_(std::make_shared<Events>(options.before_data)) {}

Result<std::unique_ptr<RawClient>> RawClient::Connect(const Options& options) {
  std::unique_ptr<EventLoop> own;
  if (options.loop == nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(own, EventLoop::Start("raw-client"));
  }
  EventLoop* const loop = own == nullptr ? options.loop : own.get();
  std::unique_ptr<RawClient> client(new RawClient(loop, std::move(own), options));
  const DialOptions dial{.address = options.address,
                         .wire = options.wire,
                         .streams = options.streams,
                         .incarnation = 1,
                         .tenant = options.tenant,
                         .client_name = options.name};
  const auto events = client->events_;
  Status outcome;
  Dial(*loop, dial, Deadline::After(options.patience), *events,
       [events, &outcome, raw = client.get()](Result<Session*> session) {
         MutexLock lock(events->mu);
         events->dialed = true;
         outcome = session.status();
         if (session.ok()) {
           events->session = *session;
           events->self = events;
           raw->info_ = (*session)->info();
         } else {
           events->closed = true;
         }
         events->changed.SignalAll();
       });
  {
    MutexLock lock(events->mu);
    while (!events->dialed) events->changed.Wait(events->mu);  // Dial() keeps its deadline.
  }
  PENSTOCK_RETURN_IF_ERROR(outcome);
  if (options.open_namespace) {
    const uint64_t id = client->Send(MessageType::kOpenNamespace,
                                     OpenNamespaceRequest{options.ns.Encode()}.Encode());
    PENSTOCK_RETURN_IF_ERROR(client->TakeStatus(id));
  }
  return client;
}

RawClient::~RawClient() {
  Close();
  [[maybe_unused]] const Status why = WaitClosed();
}

void RawClient::Close() {
  loop_.Run([this] {
    if (events_->session != nullptr) events_->session->Close(Status(Code::kCancelled));
  });
}

bool RawClient::closed() const {
  MutexLock lock(events_->mu);
  return events_->closed;
}

Status RawClient::WaitClosed() {
  const Deadline deadline = Deadline::After(patience_);
  MutexLock lock(events_->mu);
  while (!events_->closed) {
    if (!events_->changed.WaitUntil(events_->mu, deadline.at())) {
      return Status(Code::kDeadlineExceeded, "the session goes on");
    }
  }
  return events_->closed_with;
}

uint64_t RawClient::Send(MessageType type, const std::vector<std::byte>& body) {
  const uint64_t id = next_id_++;
  SendWithId(id, type, body);
  return id;
}

void RawClient::SendWithId(uint64_t id, MessageType type, const std::vector<std::byte>& body) {
  loop_.Run([&] {
    if (events_->session != nullptr) events_->session->SendMessage(type, id, body);
  });
}

void RawClient::SendBytes(uint64_t id, uint32_t item, uint64_t offset, std::string_view bytes) {
  const auto copy = std::make_shared<std::string>(bytes);
  loop_.Run([&] {
    if (events_->session == nullptr) return;
    const iovec piece{copy->data(), copy->size()};
    const DataHeader header{.item = item, .offset = offset, .length = copy->size()};
    events_->session->SendData(id, header, {&piece, 1}, [copy](const Status&) {});
  });
}

Result<RawClient::Answer> RawClient::Take(uint64_t id) {
  const Deadline deadline = Deadline::After(patience_);
  MutexLock lock(events_->mu);
  auto& queue = events_->answers[id];
  while (queue.empty() && !events_->closed) {
    if (!events_->changed.WaitUntil(events_->mu, deadline.at())) break;
  }
  if (queue.empty()) {
    return events_->closed ? Status(Code::kDisconnected, events_->closed_with.ToString())
                           : Status(Code::kDeadlineExceeded, "no answer");
  }
  Answer answer = std::move(queue.front());
  queue.pop_front();
  if (queue.empty()) events_->answers.erase(id);
  return answer;
}

Status RawClient::TakeStatus(uint64_t id) {
  PENSTOCK_ASSIGN_OR_RETURN(const Answer answer, Take(id));
  if (answer.type != MessageType::kReply) return Status(Code::kInternal, "no reply came");
  return answer.head.ToStatus();
}

Result<std::vector<Code>> RawClient::TakeStatuses(uint64_t id) {
  PENSTOCK_ASSIGN_OR_RETURN(const Answer answer, Take(id));
  if (answer.head.status != Code::kOk) return answer.head.ToStatus();
  PENSTOCK_ASSIGN_OR_RETURN(auto statuses, ItemStatuses::Decode(answer.rest));
  return std::move(statuses.statuses);
}

Result<std::vector<Code>> RawClient::TakeGrant(uint64_t id) {
  PENSTOCK_ASSIGN_OR_RETURN(const Answer answer, Take(id));
  if (answer.type == MessageType::kReply) return answer.head.ToStatus();
  if (answer.type != MessageType::kGrant) return Status(Code::kInternal, "no grant came");
  PENSTOCK_ASSIGN_OR_RETURN(auto statuses, ItemStatuses::Decode(answer.rest));
  return std::move(statuses.statuses);
}

Code RawClient::Put(const ChunkKey& key, std::string_view bytes, bool replace,
                    uint32_t deadline_ms) {
  StoreBuilder store(fingerprint_);
  store.Add(key, bytes);
  store.request.replace = replace;
  store.request.deadline_ms = deadline_ms;
  const uint64_t id = Send(MessageType::kStore, store.Encode());
  const auto grant = TakeGrant(id);
  if (!grant.ok()) return grant.status().code();
  if (grant->size() != 1) return Code::kInternal;
  if ((*grant)[0] == Code::kOk && !bytes.empty()) SendBytes(id, 0, 0, bytes);
  const auto statuses = TakeStatuses(id);
  if (!statuses.ok()) return statuses.status().code();
  return statuses->size() == 1 ? (*statuses)[0] : Code::kInternal;
}

Result<std::string> RawClient::Get(const ChunkKey& key, uint64_t capacity) {
  return std::move(GetMany({key}, capacity)[0]);
}

std::vector<Result<std::string>> RawClient::GetMany(const std::vector<ChunkKey>& keys,
                                                    uint64_t capacity) {
  FetchRequest request;
  request.namespaces = {fingerprint_};
  for (const ChunkKey& key : keys) request.items.push_back({.key = key, .capacity = capacity});
  const uint64_t id = next_id_++;
  {
    MutexLock lock(events_->mu);
    for (uint32_t i = 0; i < keys.size(); ++i) events_->buffers[{id, i}].resize(capacity);
  }
  SendWithId(id, MessageType::kFetch, request.Encode());
  std::vector<Result<std::string>> results = TakeFetch(id, keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    MutexLock lock(events_->mu);
    const auto node = events_->buffers.extract({id, static_cast<uint32_t>(i)});
    if (results[i].ok()) *results[i] = node.mapped().substr(0, results[i]->size());
  }
  return results;
}

// The results with strings of the right length; their bytes are in the buffers.
std::vector<Result<std::string>> RawClient::TakeFetch(uint64_t id, size_t count) {
  auto answer = Take(id);
  const Status whole = answer.ok() ? answer->head.ToStatus() : answer.status();
  if (!whole.ok()) return std::vector<Result<std::string>>(count, whole);
  const auto reply = DecodeFetchReply(answer->rest);
  if (!reply.ok() || reply->items.size() != count) {
    return std::vector<Result<std::string>>(count, Status(Code::kCorruptMessage));
  }
  std::vector<Result<std::string>> results;
  const Deadline deadline = Deadline::After(patience_);
  MutexLock lock(events_->mu);
  for (uint32_t i = 0; i < count; ++i) {
    const FetchReply::Item& item = reply->items[i];
    const Events::ItemId key{id, i};
    if (item.status != Code::kOk) {
      results.push_back(Status(item.status));
      continue;
    }
    while (events_->arrived[key] != item.payload_bytes && !events_->failed.contains(key) &&
           !events_->closed) {
      if (!events_->changed.WaitUntil(events_->mu, deadline.at())) break;
    }
    if (events_->arrived[key] == item.payload_bytes) {
      results.push_back(std::string(item.payload_bytes, '\0'));
    } else if (const auto failed = events_->failed.find(key); failed != events_->failed.end()) {
      results.push_back(failed->second);
    } else {
      results.push_back(Status(events_->closed ? Code::kDisconnected : Code::kDeadlineExceeded));
    }
    events_->arrived.erase(key);
    events_->failed.erase(key);
  }
  return results;
}

Result<MatchReply> RawClient::Match(const std::vector<ChunkKey>& keys, uint32_t reserve_ttl_ms) {
  MatchRequest request{.reserve_ttl_ms = reserve_ttl_ms};
  request.groups.push_back({.ns = fingerprint_, .keys = keys});
  const uint64_t id = Send(MessageType::kMatch, request.Encode());
  PENSTOCK_ASSIGN_OR_RETURN(const Answer answer, Take(id));
  if (answer.head.status != Code::kOk) return answer.head.ToStatus();
  return DecodeMatchReply(answer.rest);
}

std::vector<Code> RawClient::Keys(MessageType type, const std::vector<ChunkKey>& keys,
                                  uint32_t ttl_ms) {
  const uint64_t id =
      Send(type, KeysRequest{.ttl_ms = ttl_ms, .ns = fingerprint_, .keys = keys}.Encode());
  auto statuses = TakeStatuses(id);
  return statuses.ok() ? std::move(*statuses)
                       : std::vector<Code>(keys.size(), statuses.status().code());
}

StoreBuilder& StoreBuilder::Add(const ChunkKey& key, std::string_view bytes,
                                std::optional<uint64_t> checksum, std::optional<ChunkKey> parent) {
  const Manifest manifest =
      Manifest::Plain(bytes.size(), checksum.value_or(ChunkChecksum(key, AsBytes(bytes))));
  manifests_.push_back(std::make_unique<std::vector<std::byte>>(manifest.Encode()));
  request.items.push_back({.key = key,
                           .payload_bytes = bytes.size(),
                           .ns = 0,
                           .parent = parent,
                           .manifest = *manifests_.back()});
  return *this;
}

namespace {

struct Line {
  uint64_t key;
  uint32_t version;
  uint32_t number;
  uint64_t check;
  uint64_t padding[5];
};
static_assert(sizeof(Line) == 64);

Line MakeLine(const ChunkKey& key, uint32_t version, uint32_t number) {
  Line line{.key = key.Word(), .version = version, .number = number};
  line.check = (line.key ^ (uint64_t{version} << 32 | number)) * 0x9E3779B97F4A7C15;
  for (uint64_t& word : line.padding) word = line.check;
  return line;
}

}  // namespace

std::string TellingBytes(const ChunkKey& key, uint32_t version, size_t size) {
  std::string bytes;
  bytes.reserve(size + sizeof(Line));
  for (uint32_t number = 0; bytes.size() < size; ++number) {
    const Line line = MakeLine(key, version, number);
    bytes.append(reinterpret_cast<const char*>(&line), sizeof(line));
  }
  bytes.resize(size);
  return bytes;
}

std::optional<uint32_t> ToldVersion(const ChunkKey& key, std::string_view bytes) {
  if (bytes.size() < sizeof(Line)) return std::nullopt;
  Line first;
  std::memcpy(&first, bytes.data(), sizeof(first));
  if (bytes != TellingBytes(key, first.version, bytes.size())) return std::nullopt;
  return first.version;
}

}  // namespace penstock
