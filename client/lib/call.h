// Call: one request of an operation on its way to the daemon, and its answer. A big operation has
// several. Everything here runs on the client's loop.

#ifndef PENSTOCK_CLIENT_LIB_CALL_H_
#define PENSTOCK_CLIENT_LIB_CALL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "client/lib/operation_state.h"
#include "common/protocol/messages.h"
#include "common/transport/session.h"

namespace penstock {

class Call : public std::enable_shared_from_this<Call> {
 public:
  enum class Phase {
    kQueued,    // Not sent yet.
    kSent,      // Waiting for answers.
    kStopping,  // Over, but for the session, which still gives back the memory.
    kOver,
  };

  Call(std::shared_ptr<OperationState> operation, MessageType type)
      : operation_(std::move(operation)), type_(type) {}
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const std::shared_ptr<OperationState>& operation() const { return operation_; }
  MessageType type() const { return type_; }

  // Kept by the CallTable. The number of the request, from when it is sent.
  uint64_t id = 0;
  Phase phase = Phase::kQueued;
  Status stop_reason;  // While kStopping: of what is not decided yet.

  // Sends the request. Done once; `changed` is to be called when TouchesMemory() became false
  // outside of the calls below.
  virtual void Send(Session& session, std::function<void()> changed) = 0;
  virtual void OnGrant(ByteSpan /*body*/) {}
  // As in SessionEvents.
  virtual bool Locate(const DataHeader& /*header*/, Pieces& /*pieces*/) { return false; }
  virtual void OnData(const DataHeader& /*header*/, const Status& /*status*/) {}
  virtual void OnDataFailed(const DataHeader& /*header*/) {}
  // An answer whose head says kOk. Error: it does not parse, or not fit the request.
  virtual Status OnReply(ByteSpan rest) = 0;

  // The outcome of everything in it is known.
  virtual bool Decided() const = 0;
  // The session may read or write the caller's memory for it.
  virtual bool TouchesMemory() const { return false; }
  // Decides everything that is not decided yet.
  virtual void Fail(const Status& why) = 0;

 private:
  const std::shared_ptr<OperationState> operation_;
  const MessageType type_;
};

// A call that is one message and one reply, without data.
class SimpleCall final : public Call {
 public:
  // Makes the body when the call is sent.
  using Encode = std::function<std::vector<std::byte>(const OperationState&)>;
  // Reads the reply into the operation.
  using Read = std::function<Status(ByteSpan rest, OperationState&)>;

  // Items [first, first + count) of the operation's results belong to the call. An answer of `fine`
  // counts as kOk.
  SimpleCall(std::shared_ptr<OperationState> operation, MessageType type, Encode encode, Read read,
             size_t first = 0, size_t count = 0, Code fine = Code::kOk);

  void Send(Session& session, std::function<void()> changed) override;
  Status OnReply(ByteSpan rest) override;
  bool Decided() const override { return decided_; }
  void Fail(const Status& why) override;

 private:
  const Encode encode_;
  const Read read_;
  const size_t first_, count_;
  const Code fine_;
  bool decided_ = false;
};

// The namespaces of one request, each once.
class NamespaceList {
 public:
  // Its position. At most kMaxNamespaces different ones: see Fits().
  uint32_t Add(const Fingerprint& ns);
  bool Fits(const Fingerprint& ns) const;
  const std::vector<Fingerprint>& list() const { return list_; }

 private:
  std::vector<Fingerprint> list_;
};

// Reads one status an item into results [first, first + count).
Status ReadItemStatuses(ByteSpan rest, std::span<ItemResult> results);

}  // namespace penstock

#endif  // PENSTOCK_CLIENT_LIB_CALL_H_
