// SelfCheck: one try of the whole data path, as a client sees it: a session over the daemon's own
// listener, a chunk stored, looked up among many others, fetched, compared byte by byte, dropped.
//
// The lookup asks for many keys at once, so that it passes every part of the index: a lock that is
// stuck anywhere holds it up.

#ifndef PENSTOCK_SERVER_DAEMON_HEALTH_SELF_CHECK_H_
#define PENSTOCK_SERVER_DAEMON_HEALTH_SELF_CHECK_H_

#include <cstdint>
#include <functional>
#include <string>

#include "common/base/deadline.h"
#include "common/base/status.h"
#include "common/keys/namespace.h"
#include "common/transport/endpoint.h"
#include "common/transport/event_loop.h"

namespace penstock {

struct SelfCheckResult {
  Status status;  // Says which step failed.
  Duration took{};
};

struct SelfCheckPlan {
  Address address;          // Where to connect.
  std::string client_name;  // By which the daemon knows its own session.
  Duration patience = std::chrono::seconds(3);
  uint64_t chunk_bytes = 64u << 10;
  uint64_t number = 0;  // Of this check, so that no two use the same key.
};

// The namespace that self-checks live in. Nobody else's: its tenant is reserved.
NamespaceDescriptor SelfCheckNamespace();

// Runs one check on `loop`, which must not be a data thread's. `done` is called there, exactly
// once, at the latest a moment after `patience`. From any thread.
void RunSelfCheck(EventLoop& loop, const SelfCheckPlan& plan,
                  std::function<void(const SelfCheckResult&)> done);

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_HEALTH_SELF_CHECK_H_
