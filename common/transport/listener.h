// What stands behind Listener: accepting, the handshake of each connection, and the table of the
// sessions that came of it.

#ifndef PENSTOCK_COMMON_TRANSPORT_LISTENER_H_
#define PENSTOCK_COMMON_TRANSPORT_LISTENER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/transport/endpoint.h"
#include "common/transport/exchange.h"
#include "common/transport/hello.h"
#include "common/transport/session_impl.h"

namespace penstock {

// The sessions of a listener, by token. Thread-safe.
class SessionTable {
 public:
  // Held for as long as a session counts: from the decision to have it until it is gone. Frees its
  // place when the last reference goes, however that comes about.
  using Slot = std::shared_ptr<void>;

  explicit SessionTable(size_t loops, uint32_t max_sessions)
      : max_sessions_(max_sessions), per_loop_(loops) {}

  // A place on the loop that has the fewest sessions, whose number is written to `loop`.
  // `self` keeps the table alive. Errors: kBusy.
  static Result<Slot> TakeSlot(const std::shared_ptr<SessionTable>& self, size_t& loop)
      ABSL_LOCKS_EXCLUDED(mu_);

  // False once Close() was called.
  bool Add(const SessionToken& token, std::shared_ptr<SessionImpl> session)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const SessionToken& token) ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<SessionImpl> Find(const SessionToken& token) ABSL_LOCKS_EXCLUDED(mu_);

  // Closes every session with `why`, takes no new one, and returns when no slot is taken.
  void Close(const Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void FreeSlot(size_t loop) ABSL_LOCKS_EXCLUDED(mu_);

  const uint32_t max_sessions_;
  Mutex mu_;
  CondVar changed_;
  std::vector<uint32_t> per_loop_ ABSL_GUARDED_BY(mu_);
  uint32_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<SessionToken, std::shared_ptr<SessionImpl>> sessions_ ABSL_GUARDED_BY(mu_);
};

// A token that nobody can guess.
SessionToken DrawToken();

// Makes sessions out of connections that said HELLO, and joins those that said ATTACH. Its methods
// run on any loop.
class SessionMaker : public std::enable_shared_from_this<SessionMaker> {
 public:
  SessionMaker(const ListenOptions& options, std::vector<EventLoop*> loops, OnSession on_session);

  // Takes over a connection whose first message is `message`. Never blocks.
  void OnHandshake(UniqueFd fd, const HandshakeMessage& message);
  // Counts a connection that comes to nothing.
  void Refused(const Status& why) const;
  void Close(const Status& why) { table_->Close(why); }

 private:
  struct Request;  // A HELLO that was found good.

  bool MayBeLocal(int fd) const;
  Result<std::shared_ptr<Request>> Judge(const Hello& hello, int fd);
  void OnHello(UniqueFd fd, ByteSpan body);
  void MakeSession(const Request& request);
  // The wire that the request is to have; it may fall back to tcp. Writes to `reply` where it is.
  Status MakeWire(const Request& request, SessionImpl& session, HelloReply& reply);
  Status MakeUcxWire(SessionImpl& session, HelloReply& reply);
  void OnAttach(UniqueFd fd, ByteSpan body);
  void Attach(const std::shared_ptr<SessionImpl>& session, UniqueFd fd);
  HelloReply Reply(const Status& status) const;

  const ListenOptions options_;
  const std::vector<EventLoop*> loops_;
  const OnSession on_session_;
  const std::shared_ptr<SessionTable> table_;
  // Where the ucx wire listens: on the host of a TCP address, IPv4 if there is one, or on this host
  // only.
  const Result<SocketAddress> ucx_address_;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_LISTENER_H_
