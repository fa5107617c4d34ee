// The client behind client.h: joins the link (link.h), the calls on their way (call_table.h) and
// the caller's threads.

#ifndef PENSTOCK_CLIENT_LIB_CLIENT_IMPL_H_
#define PENSTOCK_CLIENT_LIB_CLIENT_IMPL_H_

#include <sys/types.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/lib/call_table.h"
#include "client/lib/client.h"
#include "client/lib/fetch_call.h"
#include "client/lib/link.h"
#include "client/lib/memory_map.h"
#include "client/lib/namespace_book.h"
#include "client/lib/operation_state.h"
#include "common/base/gate.h"
#include "common/base/mutex.h"
#include "common/transport/memory_registration.h"

namespace penstock {

class ClientImpl final : public Client, private OperationOwner {
 public:
  // REQUIRES: `options` were checked.
  ClientImpl(ClientOptions options, const Address& address, std::unique_ptr<EventLoop> loop);
  ~ClientImpl() override;

  void Start();

  bool WaitConnected(const Deadline& deadline) override;
  ClientStats stats() const override;
  Result<Namespace> OpenNamespace(const NamespaceDescriptor& descriptor) override;
  Result<uint64_t> Register(void* memory, size_t bytes) override;
  Status Unregister(uint64_t registration) override;
  OperationPtr Match(std::vector<MatchGroup> groups, Duration reserve_ttl, const Deadline& deadline,
                     OnDone on_done) override;
  OperationPtr Fetch(std::vector<FetchItem> items, const FetchOptions& options,
                     const Deadline& deadline, OnDone on_done) override;
  OperationPtr Store(std::vector<StoreItem> items, bool replace, const Deadline& deadline,
                     OnDone on_done) override;
  OperationPtr Touch(const Namespace& ns, std::vector<ChunkKey> keys,
                     const Deadline& deadline) override;
  OperationPtr Pin(const Namespace& ns, std::vector<ChunkKey> keys, Duration ttl,
                   const Deadline& deadline) override;
  OperationPtr Drop(const Namespace& ns, std::vector<ChunkKey> keys,
                    const Deadline& deadline) override;
  OperationPtr Stat(const Namespace& ns, const ChunkKey& key, const Deadline& deadline) override;
  OperationPtr Release(uint64_t reservation, const Deadline& deadline) override;
  OperationPtr Ping(const Deadline& deadline) override;

 private:
  using OperationRef = std::shared_ptr<OperationState>;

  struct Registration {
    uintptr_t begin = 0, end = 0;
    Gate gate;  // Operations that may use the memory are inside.
    std::unique_ptr<MemoryRegistration> with_wires;
  };

  struct Counters {
    std::atomic<uint64_t> operations{0}, failed{0}, cancelled{0};
    std::atomic<uint64_t> fetched_chunks{0}, fetched_bytes{0}, missed_chunks{0};
    std::atomic<uint64_t> stored_chunks{0}, stored_bytes{0};
    std::atomic<uint64_t> checksum_failures{0};
  };

  // client_impl.cc: the life of an operation. On the caller's thread: NewOperation(); then, unless
  // it says why not, Launch(), any number of AddCalls(), and Launched(), which makes the handle.

  // An operation with `items` results. When `refused` is not ok, it must end with Refuse().
  OperationRef NewOperation(OperationState::Kind kind, size_t items, const Deadline& deadline,
                            OnDone on_done, Status& refused);
  // Why no operation may start now.
  Status WhyNot(const Deadline& deadline) const;
  OperationPtr Refuse(const OperationRef& operation, const Status& why);
  void Launch(const OperationRef& operation);
  void AddCalls(const OperationRef& operation, std::vector<std::shared_ptr<Call>> calls);
  OperationPtr Launched(const OperationRef& operation);
  // All of it, for an operation of one call.
  OperationPtr RunOne(const OperationRef& operation, std::shared_ptr<Call> call);

  // On the loop.
  EventLoop& loop() override { return *loop_; }
  void Abort(const OperationRef& operation, const Status& why) override;
  void OnDeadline(const OperationRef& operation);
  void AddOnLoop(const OperationRef& operation, std::shared_ptr<Call> call);
  void LeaveFlight() ABSL_LOCKS_EXCLUDED(mu_);
  void CallDone(const OperationRef& operation);
  void Count(const OperationState& operation);
  void OnUp(Session& session, bool restarted);
  void OnDown(const Status& why);
  void OnClosed(const Status& why);
  void Note(const Status& error);
  // Tells the daemon that the namespace is open, or that it is not any more.
  void TellNamespace(const Fingerprint& ns, ByteSpan descriptor);
  void OnStrayReply(uint64_t id, const ReplyHead& head);
  // Says of what came to nothing because the daemon would not open a namespace that this was why.
  void ExplainRefusals(OperationState& operation);

  // client_transfers.cc
  // Keeps the registrations that [begin, end) may touch until the operation is done.
  void HoldRegistrations(OperationState& operation, uintptr_t begin, uintptr_t end);
  Result<PieceMap> TakeRoom(FetchItem& item, MemoryMap::Look& look) const;
  Result<StoreCall::Source> TakeSource(StoreItem& item, MemoryMap::Look& look) const;

  // client_requests.cc
  // On the loop: counts a checksum that did not agree and has the daemon look at its own copy.
  void ReportDamage(const Fingerprint& ns, const ChunkKey& key);
  OperationPtr RunKeys(MessageType type, const Namespace& ns, std::vector<ChunkKey> keys,
                       Duration ttl, const Deadline& deadline);

  const ClientOptions options_;
  const pid_t pid_;
  const std::shared_ptr<NamespaceBook> book_;
  MemoryMap memory_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<CallTable> table_;         // Loop only.
  std::unique_ptr<Link> link_;               // Loop only, but for its state().
  std::map<uint64_t, Fingerprint> opening_;  // Loop only: by the id of the message.

  std::atomic<bool> closing_ = false;
  std::atomic<uint32_t> in_flight_ = 0;
  // The daemon let deadlines pass without a word: nothing should wait for it.
  std::atomic<bool> silent_ = false;
  Counters counters_;

  mutable Mutex mu_;
  CondVar changed_;
  ClientStats link_stats_ ABSL_GUARDED_BY(mu_);  // The fields about the connection.
  bool session_open_ ABSL_GUARDED_BY(mu_) = false;
  std::map<uint64_t, std::shared_ptr<Registration>> registrations_ ABSL_GUARDED_BY(mu_);
  uint64_t next_registration_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace penstock

#endif  // PENSTOCK_CLIENT_LIB_CLIENT_IMPL_H_
