// Starting sessions: a daemon listens, a client dials.

#ifndef PENSTOCK_COMMON_TRANSPORT_ENDPOINT_H_
#define PENSTOCK_COMMON_TRANSPORT_ENDPOINT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/deadline.h"
#include "common/base/status.h"
#include "common/transport/event_loop.h"
#include "common/transport/message_budget.h"
#include "common/transport/session.h"

namespace penstock {

// "tcp://host:port", "tcp://[v6]:port", "unix:///path". A bare "host:port" is tcp.
struct Address {
  enum class Kind { kTcp, kUnix };
  Kind kind = Kind::kTcp;
  std::string host;  // Or the path of a Unix socket.
  uint16_t port = 0;

  // Errors: kInvalidArgument saying what was expected.
  static Result<Address> Parse(std::string_view text);
  std::string ToString() const;
};

// Settings of UCX without their "UCX_": {"TLS", "rc,tcp"}. The first that a process uses counts for
// all of it. UCX itself also reads its environment variables, which these override.
using UcxConfig = std::map<std::string, std::string>;

struct SessionLimits {
  uint32_t max_in_flight = 1024;
  uint32_t eager_bytes = 64u << 10;
  uint64_t max_chunk_bytes = 1ull << 40;
  size_t max_queued_bytes = 64u << 20;
  Duration hello_timeout = std::chrono::seconds(5);  // From accept to a whole HELLO.
  Duration heartbeat = std::chrono::seconds(2);      // PING after this much silence...
  // ...and death after this much; a message must come whole within it.
  Duration peer_timeout = std::chrono::seconds(10);
  uint32_t max_streams = 8;
  // Shared by all sessions of a process; one that wants more than there is ends with
  // kResourceExhausted. Null: no bound but each session's own.
  std::shared_ptr<MessageBudget> message_budget;
};

// A file in memory that clients on this host may read, mapped at `base`. The descriptor is the
// caller's, sealed against writing, and outlives the listener.
struct ExportedMemory {
  int fd = -1;
  const std::byte* base = nullptr;
  uint64_t bytes = 0;
};

struct ListenOptions {
  std::vector<Address> addresses;  // Port 0: the kernel chooses.
  std::string advertise_host;      // What clients are told to reach for the ucx wire.
  std::vector<std::string> wires = {"ucx", "tcp"};  // Offered, best first.
  uint64_t incarnation = 0;
  SessionLimits limits;
  uint32_t max_sessions = 4096;
  UcxConfig ucx_config;
  // What sessions over the local wire send of it is read by the clients themselves.
  std::optional<ExportedMemory> exported;
  // Called for connections that never became a session, with the reason: for counters. On any of
  // the loops; must not block.
  std::function<void(const Status&)> on_refused;
};

// Called on the session's loop when HELLO is done. Returns who gets its events; the session and its
// events live until OnClosed() and are then destroyed by the listener. nullptr refuses the session.
using OnSession = std::function<std::unique_ptr<SessionEvents>(Session&)>;

class Listener {
 public:
  // Accepts on loops[0]; sessions are spread over `loops`, which must outlive the listener.
  // Errors: kInvalidArgument, kResourceExhausted, kIoError naming the address and its owner.
  static Result<std::unique_ptr<Listener>> Start(const ListenOptions& options,
                                                 std::vector<EventLoop*> loops,
                                                 OnSession on_session);
  virtual ~Listener() = default;

  // Where it listens, with the real ports.
  virtual std::vector<Address> addresses() const = 0;
  // Stops accepting, closes every session with `why`, and returns when their OnClosed() have run.
  // Idempotent; the destructor does it too. Not from a loop's thread.
  virtual void Stop(const Status& why) = 0;
};

struct DialOptions {
  Address address;
  std::string wire = "auto";  // "auto", "local", "tcp" or "ucx".
  uint32_t streams = 2;       // Data streams asked for (tcp wire).
  uint64_t incarnation = 0;
  std::string tenant = "default";
  std::string client_name;
  SessionLimits limits;
  UcxConfig ucx_config;
};

// Called on `loop` exactly once. The session lives until its OnClosed() has returned; `events` must
// live as long.
using OnDialed = std::function<void(Result<Session*>)>;

// Connects and says HELLO within `deadline`. From any thread. Errors: kDisconnected, kVersionSkew
// (both versions are in the text), kDeadlineExceeded, kBusy, kPermissionDenied, kInvalidArgument,
// kUnimplemented (no common wire). With wire "auto", local is asked for at a Unix socket, and ucx
// only where this machine has an RDMA device and the daemon is reached at neither a Unix socket nor
// a loopback address (else sockets are faster and do not poll), and a ucx wire that does not come
// up falls back to tcp; session.info().wire says which it is.
void Dial(EventLoop& loop, const DialOptions& options, const Deadline& deadline,
          SessionEvents& events, OnDialed on_dialed);

// auto, local, tcp or ucx.
bool IsWireName(std::string_view name);

// Whether the kernel knows one; the ucx wire is for machines that have.
bool HasRdmaDevice();

// Wires that this build and machine can use, best first, with what UCX found: for `doctor`.
struct WireReport {
  std::string wire;
  bool usable = false;
  std::string detail;
};
std::vector<WireReport> DescribeWires();

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_ENDPOINT_H_
