// Puppet: a daemon whose every move a test decides, over the real transport. For what the real
// daemon never does: wrong bytes, bytes twice or at the wrong place, answers in any order, silence.

#ifndef PENSTOCK_TESTS_INTEGRATION_CLIENT_PUPPET_H_
#define PENSTOCK_TESTS_INTEGRATION_CLIENT_PUPPET_H_

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/lib/client.h"
#include "common/base/mutex.h"
#include "common/protocol/messages.h"
#include "common/transport/endpoint.h"

namespace penstock {

class Puppet {
 public:
  struct Message {
    MessageType type = MessageType::kReply;
    uint64_t id = 0;
    std::vector<std::byte> body;
  };

  // Listens at a Unix path of its own.
  explicit Puppet(const SessionLimits& limits = {});
  ~Puppet();

  std::string address() const { return "unix://" + directory_ + "/socket"; }
  // A connected client; `edit` may change its options first.
  std::unique_ptr<Client> Connect(const std::function<void(ClientOptions&)>& edit = {});

  // Ends every session and stops listening; Start() makes another daemon, of a new incarnation.
  void Stop();
  void Start();
  uint64_t incarnation() const { return incarnation_; }

  // The next message, which must be of `type`; kCancel is skipped unless it is asked for, and
  // OpenNamespace is answered and counted by itself.
  // Fails the test and returns an empty message when nothing comes for 20 seconds.
  Message Next(MessageType type);
  // No message waits to be taken.
  bool Quiet();
  size_t opened_namespaces();
  size_t closed_namespaces();
  // Blocks until so many were closed in all.
  void WaitClosedNamespaces(size_t count);
  // What openings are answered from now on.
  void AnswerNamespaces(const Status& status);
  size_t sessions();  // Ever begun.

  template <typename Payload>
  void Reply(const Message& to, const Payload& payload) {
    Send(MessageType::kReply, to.id, EncodeReply({.request = to.type}, payload));
  }
  void ReplyOk(const Message& to) { Refuse(to, Status::Ok()); }
  void Refuse(const Message& to, const Status& status) {
    Send(MessageType::kReply, to.id, EncodeReply(ReplyHead::From(to.type, status)));
  }
  void Grant(const Message& to, std::vector<Code> statuses) {
    Send(MessageType::kGrant, to.id, ItemStatuses{std::move(statuses)}.Encode());
  }
  void Send(MessageType type, uint64_t id, std::vector<std::byte> body);
  // Sends bytes; returns when the socket has them.
  void Data(uint64_t id, uint32_t item, uint64_t offset, std::string bytes);
  void FailItem(uint64_t id, uint32_t item, Code code);
  // Bytes that came for an item of a STORE: blocks until there are `count`.
  std::string Received(uint64_t id, uint32_t item, size_t count);
  // Blocks until the client said that the item does not come.
  Code ReceivedFailure(uint64_t id, uint32_t item);
  // Blocks until the current session has ended.
  Status WaitClosed();

 private:
  class Events;
  struct Incoming {
    std::unique_ptr<std::byte[]> bytes;
    size_t landed = 0;
    Code failure = Code::kOk;
  };
  using ItemId = std::pair<uint64_t, uint32_t>;
  static constexpr size_t kMaxItemBytes = 32u << 20;

  Session* WaitSession();

  const SessionLimits limits_;
  std::string directory_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Listener> listener_;
  uint64_t incarnation_ = 0;

  Mutex mu_;
  CondVar changed_;
  Session* session_ ABSL_GUARDED_BY(mu_) = nullptr;
  Status closed_ ABSL_GUARDED_BY(mu_);
  size_t sessions_ ABSL_GUARDED_BY(mu_) = 0;
  size_t opened_namespaces_ ABSL_GUARDED_BY(mu_) = 0;
  size_t closed_namespaces_ ABSL_GUARDED_BY(mu_) = 0;
  Status namespace_answer_ ABSL_GUARDED_BY(mu_);
  std::deque<Message> messages_ ABSL_GUARDED_BY(mu_);
  std::map<ItemId, Incoming> incoming_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock

#endif  // PENSTOCK_TESTS_INTEGRATION_CLIENT_PUPPET_H_
