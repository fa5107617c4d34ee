// RawClient: one session with a daemon and nothing on top: for tests that must say exactly what
// goes over the wire, also what no proper client would say. Every call blocks, at most 30 s.

#ifndef PENSTOCK_TESTS_INTEGRATION_DAEMON_RAW_CLIENT_H_
#define PENSTOCK_TESTS_INTEGRATION_DAEMON_RAW_CLIENT_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/keys/namespace.h"
#include "common/protocol/messages.h"
#include "common/transport/endpoint.h"

namespace penstock {

// The namespace that tests of the daemon live in.
NamespaceDescriptor TestNamespace(const std::string& model = "tests/daemon");

class RawClient {
 public:
  struct Options {
    Address address;
    std::string wire = "tcp";
    std::string tenant = "default";
    std::string name = "raw-client";
    uint32_t streams = 2;
    EventLoop* loop = nullptr;  // Shared with others; null: one of its own.
    NamespaceDescriptor ns = TestNamespace();
    bool open_namespace = true;
    Duration patience = std::chrono::seconds(30);
    std::function<void()> before_data;  // Called on the loop when bytes of a fetch are there.
  };
  static Result<std::unique_ptr<RawClient>> Connect(const Options& options);
  static Result<std::unique_ptr<RawClient>> Connect(const Address& address) {
    return Connect(Options{.address = address});
  }
  // Closes.
  ~RawClient();

  struct Answer {
    MessageType type = MessageType::kReply;
    ReplyHead head;               // Of a reply.
    std::vector<std::byte> rest;  // What a reply's type adds; of other messages, the body.
  };

  // Sends a request and returns its id.
  uint64_t Send(MessageType type, const std::vector<std::byte>& body);
  void SendWithId(uint64_t id, MessageType type, const std::vector<std::byte>& body);
  // Bytes [offset, offset + bytes.size()) of an item. The bytes are copied.
  void SendBytes(uint64_t id, uint32_t item, uint64_t offset, std::string_view bytes);
  // The next message with this id. Errors: why the session ended; kDeadlineExceeded.
  Result<Answer> Take(uint64_t id);
  // A reply's status as a whole; for a request whose reply carries item statuses, those.
  Status TakeStatus(uint64_t id);
  Result<std::vector<Code>> TakeStatuses(uint64_t id);
  Result<std::vector<Code>> TakeGrant(uint64_t id);

  // The whole of a request and its answer.
  Code Put(const ChunkKey& key, std::string_view bytes, bool replace = false,
           uint32_t deadline_ms = 30000);
  Result<std::string> Get(const ChunkKey& key, uint64_t capacity = 8u << 20);
  // One entry a key: the bytes, or why not.
  std::vector<Result<std::string>> GetMany(const std::vector<ChunkKey>& keys,
                                           uint64_t capacity = 8u << 20);
  Result<MatchReply> Match(const std::vector<ChunkKey>& keys, uint32_t reserve_ttl_ms = 0);
  std::vector<Code> Keys(MessageType type, const std::vector<ChunkKey>& keys, uint32_t ttl_ms = 0);

  ChunkKey Key(std::string_view name) const { return NamedKey(fingerprint_, name); }
  const Fingerprint& fingerprint() const { return fingerprint_; }
  const SessionInfo& info() const { return info_; }
  bool closed() const;
  // Blocks until the session has ended; why.
  Status WaitClosed();
  void Close();

 private:
  class Events;
  RawClient(EventLoop* loop, std::unique_ptr<EventLoop> own_loop, const Options& options);
  std::vector<Result<std::string>> TakeFetch(uint64_t id, size_t count);

  std::unique_ptr<EventLoop> own_loop_;
  EventLoop& loop_;
  const Duration patience_;
  const Fingerprint fingerprint_;
  SessionInfo info_;
  std::shared_ptr<Events> events_;
  uint64_t next_id_ = 1;
};

// A STORE request of chunks under one namespace, with the manifests it needs.
class StoreBuilder {
 public:
  explicit StoreBuilder(const Fingerprint& ns) { request.namespaces = {ns}; }
  StoreBuilder& Add(const ChunkKey& key, std::string_view bytes,
                    std::optional<uint64_t> checksum = std::nullopt,
                    std::optional<ChunkKey> parent = std::nullopt);
  std::vector<std::byte> Encode() const { return request.Encode(); }
  StoreRequest request;

 private:
  std::vector<std::unique_ptr<std::vector<std::byte>>> manifests_;
};

// Bytes that tell which chunk they belong to at every 64th of them, so that a mixture, a shift or
// another chunk's bytes are seen.
std::string TellingBytes(const ChunkKey& key, uint32_t version, size_t size);
// Whether `bytes` are TellingBytes() of some version of `key`; that version.
std::optional<uint32_t> ToldVersion(const ChunkKey& key, std::string_view bytes);

}  // namespace penstock

#endif  // PENSTOCK_TESTS_INTEGRATION_DAEMON_RAW_CLIENT_H_
