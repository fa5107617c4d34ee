// CallTable: the calls that wait to be sent and those that wait for an answer. It gives them ids
// that are never used again, keeps to the window that the daemon allows, brings each answer to its
// call, and ends calls so that afterwards nothing touches their memory.
//
// Everything runs on the client's loop.

#ifndef PENSTOCK_CLIENT_LIB_CALL_TABLE_H_
#define PENSTOCK_CLIENT_LIB_CALL_TABLE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "client/lib/call.h"
#include "client/lib/store_call.h"
#include "common/transport/session.h"

namespace penstock {

class CallTable final : public SessionEvents {
 public:
  // Further calls wait while the session has this many bytes that the socket did not take.
  static constexpr size_t kMaxUnsentBytes = 16u << 20;

  struct Callbacks {
    std::function<void(Call&)> on_done;  // The call is over.
    std::function<void()> on_heard;      // The daemon said something.
    // The answer to a message that was sent past the table, or that nobody waits for any more.
    std::function<void(uint64_t id, const ReplyHead&)> on_stray_reply;
    std::function<void(const Status&)> on_closed;
  };

  explicit CallTable(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}

  // A session is up; its events come here. SendQueued() must follow.
  void Attach(Session& session);
  // Sends what waits, as far as the session has room.
  void SendQueued();
  // Queues the call, and sends it as soon as there is a session with room.
  void Add(std::shared_ptr<Call> call);
  // Ends the call with `why`, in the end; one that is over already is ignored.
  void Abort(const std::shared_ptr<Call>& call, const Status& why);
  // Ends every call that is not sent yet.
  void FailQueued(const Status& why);
  void AbortAll(const Status& why);
  StoreQueue& store_queue() { return store_queue_; }
  // Sends a message whose answer nobody waits for, and returns its id. REQUIRES: a session.
  uint64_t SendStray(MessageType type, ByteSpan body);
  // For how long the daemon has owed an answer without saying anything at all.
  Duration Silence() const;

  void OnMessage(MessageType type, uint64_t request_id, ByteSpan body) override;
  bool Locate(uint64_t request_id, const DataHeader& header, Pieces& pieces) override;
  void OnData(uint64_t request_id, const DataHeader& header, const Status& status) override;
  void OnDataFailed(uint64_t request_id, const DataHeader& header) override;
  void OnClosed(const Status& why) override;

 private:
  // The call, if it is on its way in `phase`; else null.
  std::shared_ptr<Call> Find(uint64_t id, Call::Phase phase) const;
  void OnReply(uint64_t id, ByteSpan body);
  void OnStrayReply(uint64_t id, const DecodedReply& reply);
  void Heard();
  // Ends the call if its outcome is known.
  void Settle(const std::shared_ptr<Call>& call);
  void Stop(const std::shared_ptr<Call>& call, const Status& why);
  void Finish(const std::shared_ptr<Call>& call);
  // Gives back the place of a call that is answered and over.
  void LeaveIfOver(uint64_t id);

  const Callbacks callbacks_;
  Session* session_ = nullptr;
  StoreQueue store_queue_;
  // Drawn when a message is sent: the daemon takes data with a lower number than the latest
  // request's for data that nobody wants.
  uint64_t next_id_ = 1;
  std::deque<std::shared_ptr<Call>> queued_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Call>> calls_;  // Sent and not over.
  // Sent on the session and not answered, whether anybody still waits for it or not.
  absl::flat_hash_set<uint64_t> unanswered_;
  // Sent on the session, and not answered or with data still to come: what the daemon counts, for
  // which a FETCH lasts until its last byte is gone.
  absl::flat_hash_set<uint64_t> in_flight_;
  std::optional<MonotonicTime> silent_since_;  // While something is unanswered.
};

}  // namespace penstock

#endif  // PENSTOCK_CLIENT_LIB_CALL_TABLE_H_
