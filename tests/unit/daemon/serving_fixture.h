// ServingTest: a ServedSession over a real store and a real loop, driven through a ScriptedSession.

#ifndef PENSTOCK_TESTS_UNIT_DAEMON_SERVING_FIXTURE_H_
#define PENSTOCK_TESTS_UNIT_DAEMON_SERVING_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/format/checksum.h"
#include "common/keys/namespace.h"
#include "server/daemon/serving/served_session.h"
#include "tests/unit/scripted_session.h"

namespace penstock {

inline std::string Pattern(size_t bytes, unsigned seed) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>((i * 131 + seed * 7919) >> 3);
  return text;
}

class ServingTest : public testing::Test {
 protected:
  ServingTest() {
    descriptor_.tenant = "default";
    descriptor_.model = "tests/serving";
    descriptor_.block_tokens = 16;
    descriptor_.chunk_tokens = 16;
  }

  void SetUp() override { Start(ServingLimits{}); }
  void TearDown() override { Shut(); }

  void Start(const ServingLimits& limits) {
    Shut();
    ChunkStoreOptions options;
    options.arena.bytes = 64u << 20;
    auto store = ChunkStore::Create(options);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = std::move(*store);
    auto loop = EventLoop::Start("serving-test");
    ASSERT_TRUE(loop.ok());
    loop_ = std::move(*loop);
    auto workers = WorkerPool::Start(1, 64);
    ASSERT_TRUE(workers.ok());
    workers_ = std::move(*workers);
    serving_ = std::make_unique<Serving>(*store_, *workers_, limits);
    session_ = std::make_unique<ScriptedSession>(*loop_);
    On([this] {
      served_ = std::make_unique<ServedSession>(*session_, *serving_, 0, /*internal=*/false);
    });
    Send(MessageType::kOpenNamespace, 1, OpenNamespaceRequest{descriptor_.Encode()}.Encode());
    EXPECT_EQ(TakeReply(1).head.status, Code::kOk);
  }

  void CloseSession(Code why = Code::kDisconnected) {
    On([this, why] {
      if (served_ == nullptr) return;
      served_->OnClosed(Status(why));
      served_.reset();
    });
  }

  void Shut() {
    if (loop_ == nullptr) return;
    CloseSession();
    workers_->Stop();
    loop_->Stop();
    serving_.reset();
    session_.reset();
    workers_.reset();
    loop_.reset();
    store_.reset();  // Aborts if anything still holds a chunk.
  }

  void On(const std::function<void()>& fn) { loop_->Run(fn); }
  // Requests go by names here, numbers that a test makes up and may use again. What the session
  // sees are ids that increase, as a client's do.
  uint64_t IdOf(uint64_t name) {
    const auto [it, added] = ids_.try_emplace(name);
    if (added) it->second = {++latest_id_, false};
    return it->second.id;
  }
  void Send(MessageType type, uint64_t name, const std::vector<std::byte>& body) {
    if (type != MessageType::kCancel) {
      const auto it = ids_.find(name);
      if (it != ids_.end() && it->second.sent) ids_.erase(it);
    }
    const uint64_t id = IdOf(name);
    if (type != MessageType::kCancel) ids_[name].sent = true;
    SendWithId(type, id, body);
  }
  void SendWithId(MessageType type, uint64_t id, const std::vector<std::byte>& body) {
    On([&] { served_->OnMessage(type, id, body); });
  }

  struct Reply {
    ReplyHead head;
    std::vector<std::byte> body;
    ByteSpan rest;
  };
  Reply TakeReply(uint64_t name) {
    Reply reply;
    auto message = session_->Take(IdOf(name));
    EXPECT_TRUE(message.has_value()) << "no answer to request " << name;
    if (!message) return reply;
    EXPECT_EQ(message->type, MessageType::kReply);
    reply.body = std::move(message->body);
    const auto decoded = DecodeReply(reply.body);
    EXPECT_TRUE(decoded.ok());
    if (!decoded.ok()) return reply;
    reply.head = decoded->head;
    reply.rest = decoded->rest;
    return reply;
  }
  std::vector<Code> TakeStatuses(uint64_t id) {
    const Reply reply = TakeReply(id);
    EXPECT_EQ(reply.head.status, Code::kOk) << reply.head.message;
    const auto statuses = ItemStatuses::Decode(reply.rest);
    return statuses.ok() ? statuses->statuses : std::vector<Code>{};
  }
  std::vector<Code> TakeGrant(uint64_t name) {
    const auto message = session_->Take(IdOf(name));
    EXPECT_TRUE(message.has_value() && message->type == MessageType::kGrant);
    if (!message) return {};
    const auto statuses = ItemStatuses::Decode(message->body);
    return statuses.ok() ? statuses->statuses : std::vector<Code>{};
  }

  Fingerprint ns() const { return descriptor_.ComputeFingerprint(); }
  ChunkKey Key(std::string_view name) const { return NamedKey(ns(), name); }

  // A STORE request that owns what it points to.
  class Storing {
   public:
    explicit Storing(const Fingerprint& ns) { request.namespaces = {ns}; }
    Storing& Add(const ChunkKey& key, std::string_view bytes, std::optional<uint64_t> sum = {}) {
      const Manifest manifest =
          Manifest::Plain(bytes.size(), sum.value_or(ChunkChecksum(key, AsBytes(bytes))));
      manifests_.push_back(std::make_unique<std::vector<std::byte>>(manifest.Encode()));
      request.items.push_back({.key = key,
                               .payload_bytes = bytes.size(),
                               .ns = 0,
                               .parent = std::nullopt,
                               .manifest = *manifests_.back()});
      return *this;
    }
    std::vector<std::byte> Encode() const { return request.Encode(); }
    StoreRequest request;

   private:
    std::vector<std::unique_ptr<std::vector<std::byte>>> manifests_;
  };

  // Offers one DATA frame; on acceptance writes its bytes and, if `land`, reports them landed.
  // False when it is refused.
  bool Data(uint64_t name, uint32_t item, uint64_t offset, std::string_view bytes,
            bool land = true) {
    return DataWithId(IdOf(name), item, offset, bytes, land);
  }
  bool DataWithId(uint64_t id, uint32_t item, uint64_t offset, std::string_view bytes,
                  bool land = true) {
    bool accepted = false;
    On([&] {
      const DataHeader header{.item = item, .offset = offset, .length = bytes.size()};
      Pieces pieces;
      accepted = served_->Locate(id, header, pieces);
      if (!accepted) return;
      size_t copied = 0;
      for (const iovec& piece : pieces) {
        bytes.copy(static_cast<char*>(piece.iov_base), piece.iov_len, copied);
        copied += piece.iov_len;
      }
      ASSERT_EQ(copied, bytes.size());
      if (land) served_->OnData(id, header, Status::Ok());
    });
    return accepted;
  }
  void Land(uint64_t name, uint32_t item, uint64_t offset, uint64_t length,
            const Status& status = Status::Ok()) {
    On([&, id = IdOf(name)] {
      served_->OnData(id, {.item = item, .offset = offset, .length = length}, status);
    });
  }

  // Stores `bytes` under `key`, past the session.
  void Put(const ChunkKey& key, std::string_view bytes) {
    auto pending = store_->Begin(
        {.key = key,
         .ns = store_->FindNamespace(ns()),
         .manifest = Manifest::Plain(bytes.size(), ChunkChecksum(key, AsBytes(bytes)))});
    ASSERT_TRUE(pending.ok()) << pending.status().ToString();
    for (const iovec& piece : pending->pieces()) {
      std::memcpy(piece.iov_base, bytes.data(), piece.iov_len);
      bytes.remove_prefix(piece.iov_len);
    }
    ASSERT_TRUE(store_->Commit(std::move(*pending)).ok());
  }

  FetchRequest Fetching(const std::vector<ChunkKey>& keys, uint64_t capacity = 1u << 30) const {
    FetchRequest request;
    request.namespaces = {ns()};
    for (const ChunkKey& key : keys) request.items.push_back({.key = key, .capacity = capacity});
    return request;
  }

  // Everything that must be zero when nothing is going on.
  void ExpectIdle() {
    On([] {});  // A reply is seen before the turn that sent it is over.
    const ChunkStoreStats stats = store_->Stats();
    EXPECT_EQ(stats.pending_chunks, 0u);
    EXPECT_EQ(stats.detached_chunks, 0u);
    EXPECT_EQ(serving_->in_flight.count(), 0u);
    const ServingCounters& c = serving_->counters;
    EXPECT_EQ(c.stores_in_flight.value(), 0);
    EXPECT_EQ(c.fetches_in_flight.value(), 0);
    EXPECT_EQ(c.fetch_held_chunks.value(), 0);
    EXPECT_EQ(c.fetch_queued_bytes.value(), 0);
    EXPECT_EQ(serving_->fetching.bytes(), 0u);
    EXPECT_EQ(c.store_pending_items.value(), 0);
  }

  NamespaceDescriptor descriptor_;
  std::unique_ptr<ChunkStore> store_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<Serving> serving_;
  std::unique_ptr<ScriptedSession> session_;
  std::unique_ptr<ServedSession> served_;
  uint64_t next_name_ = 1000;

 private:
  struct Id {
    uint64_t id = 0;
    bool sent = false;
  };
  std::map<uint64_t, Id> ids_;
  uint64_t latest_id_ = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_TESTS_UNIT_DAEMON_SERVING_FIXTURE_H_
