// ServedSession: the daemon's side of one client's session. Decodes the client's requests, answers
// each with exactly one kReply, moves the bytes, and gives back everything when the session ends,
// however it ends.
//
// Threads: the session's loop only.

#ifndef PENSTOCK_SERVER_DAEMON_SERVING_SERVED_SESSION_H_
#define PENSTOCK_SERVER_DAEMON_SERVING_SERVED_SESSION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "common/transport/session.h"
#include "server/daemon/serving/early_data.h"
#include "server/daemon/serving/fetch_job.h"
#include "server/daemon/serving/namespace_view.h"
#include "server/daemon/serving/serving.h"
#include "server/daemon/serving/simple_requests.h"
#include "server/daemon/serving/store_job.h"

namespace penstock {

class ServedSession final : public SessionEvents {
 public:
  // `serving` outlives every session. `internal`: the daemon's own self-check, which is counted
  // apart. `data_thread` is for people.
  ServedSession(Session& session, Serving& serving, uint32_t data_thread, bool internal);
  ~ServedSession() override;

  void OnMessage(MessageType type, uint64_t request_id, ByteSpan body) override;
  bool Locate(uint64_t request_id, const DataHeader& header, Pieces& pieces) override;
  void OnData(uint64_t request_id, const DataHeader& header, const Status& status) override;
  void OnDataFailed(uint64_t request_id, const DataHeader& header) override;
  void OnClosed(const Status& why) override;

 private:
  void OnRequest(MessageType type, uint64_t request_id, ByteSpan body);
  void OnFetch(uint64_t request_id, ByteSpan body);
  void OnStore(uint64_t request_id, ByteSpan body);
  void OnCancel(uint64_t request_id);
  void OnSimple(MessageType type, uint64_t request_id, ByteSpan body);

  // A place for one more FETCH or STORE, or why there is none.
  Result<InFlight::Slot> Admit();
  Status CheckEager(const StoreRequest& request) const;
  // Gives an eager STORE the data that came before it.
  void ReplayEarlyData(uint64_t request_id, const std::shared_ptr<StoreJob>& job);
  // Answers a request as a whole with an error.
  void Refuse(MessageType type, uint64_t request_id, const Status& status);
  // Gives frames of the waiting fetches to the wire, in turns, up to the window.
  void Pump();
  std::shared_ptr<StoreJob> FindStore(uint64_t request_id) const;
  void NoteActivity();
  void CountDiscarded(const DataHeader& header);

  Session& session_;
  Serving& serving_;
  ServingCounters& counters_;
  const std::shared_ptr<SessionRecord> record_;
  const OwnerId owner_;
  NamespaceView namespaces_;
  SessionReservations reservations_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<StoreJob>> stores_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<FetchJob>> fetches_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<FetchJob>> cancelled_fetches_;
  // Fetches that may have more to send, in the order of their turns.
  std::deque<std::weak_ptr<FetchJob>> turns_;
  uint64_t fetch_bytes_queued_ = 0;  // Given to the wire and not done.
  EarlyData early_;
  uint64_t latest_request_ = 0;
  bool closed_ = false;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_SERVING_SERVED_SESSION_H_
