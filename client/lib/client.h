// libpenstock: the client of a penstockd. This is the one header that applications include.
//
// A Client keeps one session with one daemon, reconnects by itself, and never makes its caller wait
// longer than the caller's deadline. Operations are asynchronous and batched: they return an
// Operation at once, complete on the client's own thread, and report one status an item. The daemon
// being away is an ordinary outcome (kDisconnected), never an exception and never a hang.
//
// Thread safety: every method of Client, Namespace and Operation may be called from any thread.
//
// Memory: buffers named by an operation belong to it from the call until the operation is done
// (Wait() or Done() says so) or Cancel() has returned; then nothing touches them any more.
// With Client::Register() the ucx wire moves bytes without copies; memory that is not registered
// also works on every wire.

#ifndef PENSTOCK_CLIENT_LIB_CLIENT_H_
#define PENSTOCK_CLIENT_LIB_CLIENT_H_

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/deadline.h"
#include "common/base/status.h"
#include "common/format/manifest.h"
#include "common/keys/chunk_key.h"
#include "common/keys/namespace.h"
#include "common/protocol/messages.h"

namespace penstock {

struct ClientOptions {
  std::string address = "tcp://127.0.0.1:7411";  // Or "unix:///path".
  std::string wire = "auto";                     // "auto", "local", "tcp", "ucx".
  std::string tenant = "default";
  std::string name;              // Shown by `penstock top`; default: program:pid.
  uint32_t streams = 2;          // Data streams of the tcp wire.
  uint32_t max_in_flight = 256;  // Operations; further ones get kBusy at once.
  Duration connect_timeout = std::chrono::seconds(2);
  Duration reconnect_min = std::chrono::milliseconds(20);  // Doubles up to reconnect_max.
  Duration reconnect_max = std::chrono::seconds(1);
  // How long operations wait for a daemon that went away (or was never there) to come back. Then
  // they fail at once with kDisconnected until it is back. A daemon that owes an answer and says
  // nothing for as long, while a deadline passes, is treated alike.
  Duration patience = std::chrono::milliseconds(250);
  bool verify_checksums = true;  // Off: only for measuring what they cost.
};

class NamespaceBook;

// A namespace that chunks live in. Cheap to copy. Made by Client::OpenNamespace(). It stays open as
// long as there is a copy, or an operation on it that is not done; then the daemon is told, and may
// give its place to another one once it has no chunks. The chunks stay.
class Namespace {
 public:
  const Fingerprint& fingerprint() const;
  const NamespaceDescriptor& descriptor() const;
  // False for a handle that no OpenNamespace() made; its fingerprint is all zeros.
  bool valid() const { return data_ != nullptr; }

 private:
  friend class NamespaceBook;
  struct Data;
  std::shared_ptr<const Data> data_;
};

struct MatchGroup {
  Namespace ns;
  std::vector<ChunkKey> keys;
  uint32_t window_chunks = 0;  // 0: full attention.
};

struct FetchItem {
  Namespace ns;
  ChunkKey key;
  std::vector<iovec> pieces;  // Where the bytes go, in order.
};

struct StoreItem {
  Namespace ns;
  ChunkKey key;
  std::vector<iovec> pieces;  // Where the bytes are, in order.
  std::optional<ChunkKey> parent;
  uint32_t token_count = 0;
  // Segments in order, adding up to the pieces; checksums are filled in by the client. Empty: one
  // opaque segment.
  std::vector<Segment> segments;
  uint32_t manifest_flags = 0;
  uint64_t tag = 0;
};

struct FetchOptions {
  uint64_t reservation = 0;
  uint64_t tag = 0;
  bool accept_inexact = false;
  std::vector<std::byte> selection;  // Selection::Encode(); empty: everything.
};

struct MatchOutcome {
  uint32_t chunks = 0;
  uint64_t bytes = 0;
  uint64_t reservation = 0;
  std::vector<MatchReply::Detail> details;
};

// What happened to one item of an operation.
struct ItemResult {
  Status status;
  uint64_t bytes = 0;  // Fetch: delivered, or needed when kBufferTooSmall. Store: stored.
  uint32_t token_count = 0;
};

// One operation on its way. Dropping the last handle of an operation that is not done cancels it
// and waits as Cancel() does.
class Operation {
 public:
  virtual ~Operation() = default;

  virtual bool Done() const = 0;
  // True when done; false when `deadline` came first (the operation goes on).
  virtual bool Wait(const Deadline& deadline) = 0;
  // Returns when nothing touches the operation's memory any more. What was not finished becomes
  // kCancelled. Bounded by about a second. On the client's thread, which cannot wait for itself, it
  // only begins to cancel. In a child that forked it does nothing: the parent has the operation.
  virtual void Cancel() = 0;

  // REQUIRES: Done(). kOk when the request as a whole was answered; items may still differ.
  virtual Status status() const = 0;
  virtual const std::vector<ItemResult>& items() const = 0;
  virtual const MatchOutcome& match() const = 0;  // Of Match().
  virtual const StatReply& stat() const = 0;      // Of Stat(); lives as long as the operation.
};
using OperationPtr = std::shared_ptr<Operation>;

// Called once on the client's thread when the operation is done, perhaps after a Wait() has already
// returned; must not block, so it must not wait for or destroy what is not done.
using OnDone = std::function<void(Operation&)>;

struct ClientStats {
  bool connected = false;
  uint64_t daemon_incarnation = 0;
  std::string daemon_software;
  std::string wire;
  uint32_t in_flight = 0;
  uint64_t connects = 0, disconnects = 0;
  uint64_t daemon_restarts = 0;  // Reconnects that found another incarnation.
  uint64_t operations = 0, failed_operations = 0, cancelled_operations = 0;
  uint64_t fetched_chunks = 0, fetched_bytes = 0, missed_chunks = 0;
  uint64_t stored_chunks = 0, stored_bytes = 0;
  uint64_t checksum_failures = 0;
  std::string last_error;  // Why it is not connected.
};

class Client {
 public:
  // Starts connecting in the background; a daemon that is away is no error. Errors:
  // kInvalidArgument, kResourceExhausted.
  static Result<std::unique_ptr<Client>> Create(const ClientOptions& options);
  // Cancels what is in flight, waits for it, disconnects.
  virtual ~Client() = default;

  // True once connected, before `deadline`.
  virtual bool WaitConnected(const Deadline& deadline) = 0;
  virtual ClientStats stats() const = 0;

  // Validates the descriptor; tells the daemon now and again after each reconnect. Never waits, so
  // that a daemon without room for it says so later: operations on it then end with that status
  // (kResourceExhausted), while it is tried again about once a second. Errors: kInvalidArgument,
  // kResourceExhausted (too many of this client).
  virtual Result<Namespace> OpenNamespace(const NamespaceDescriptor& descriptor) = 0;

  // Registers memory for the ucx wire, once however many buffers lie in it, and again by itself
  // after a reconnect. Errors: kBadBuffer (not mapped, not writable), kResourceExhausted naming the
  // limit. Unregister waits until no operation uses the memory.
  virtual Result<uint64_t> Register(void* memory, size_t bytes) = 0;
  virtual Status Unregister(uint64_t registration) = 0;

  // reserve_ttl 0: no reservation.
  virtual OperationPtr Match(std::vector<MatchGroup> groups, Duration reserve_ttl,
                             const Deadline& deadline, OnDone on_done = {}) = 0;
  virtual OperationPtr Fetch(std::vector<FetchItem> items, const FetchOptions& options,
                             const Deadline& deadline, OnDone on_done = {}) = 0;
  // First wins: a committed chunk under the key gives kAlreadyExists, unless `replace`.
  virtual OperationPtr Store(std::vector<StoreItem> items, bool replace, const Deadline& deadline,
                             OnDone on_done = {}) = 0;
  // The keys of a prefix, in order: what is whole from its head is refreshed, and everything after
  // the first chunk that is not there is kMiss.
  virtual OperationPtr Touch(const Namespace& ns, std::vector<ChunkKey> keys,
                             const Deadline& deadline) = 0;
  // ttl 0: unpin.
  virtual OperationPtr Pin(const Namespace& ns, std::vector<ChunkKey> keys, Duration ttl,
                           const Deadline& deadline) = 0;
  virtual OperationPtr Drop(const Namespace& ns, std::vector<ChunkKey> keys,
                            const Deadline& deadline) = 0;
  virtual OperationPtr Stat(const Namespace& ns, const ChunkKey& key, const Deadline& deadline) = 0;
  virtual OperationPtr Release(uint64_t reservation, const Deadline& deadline) = 0;
  // A round trip to the daemon and back through its data thread.
  virtual OperationPtr Ping(const Deadline& deadline) = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_CLIENT_LIB_CLIENT_H_
