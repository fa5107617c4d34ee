// NamespaceView: the namespaces as one tenant sees them. A namespace of another tenant does not
// exist for it.
//
// Thread safety: none; belongs to one session.

#ifndef PENSTOCK_SERVER_DAEMON_SERVING_NAMESPACE_VIEW_H_
#define PENSTOCK_SERVER_DAEMON_SERVING_NAMESPACE_VIEW_H_

#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/bytes.h"
#include "common/base/status.h"
#include "server/daemon/store/chunk_store.h"

namespace penstock {

class NamespaceView {
 public:
  NamespaceView(ChunkStore& store, std::string tenant)
      : store_(store), tenant_(std::move(tenant)) {}

  // Makes the namespace known, and keeps it open until Close() or the end of the view. Errors:
  // kCorruptMessage, kInvalidArgument (the descriptor), kPermissionDenied (it belongs to another
  // tenant), kResourceExhausted.
  Status Open(ByteSpan descriptor);
  // Lets go of it, if it was opened here. Errors: as for the descriptor above.
  Status Close(ByteSpan descriptor);
  // kNone when nobody has opened it, or when it belongs to another tenant.
  NamespaceId Find(const Fingerprint& fingerprint);

 private:
  Result<Fingerprint> Judge(ByteSpan descriptor) const;

  ChunkStore& store_;
  const std::string tenant_;
  // Those that are open here. What others opened is looked up each time: it may go at any moment.
  absl::flat_hash_map<Fingerprint, HeldNamespace> open_;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_SERVING_NAMESPACE_VIEW_H_
