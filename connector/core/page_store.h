// PageStore: chunks between a penstockd and an engine's pages, without a copy in between.
//
// The engine's memory is registered once a storage, however many layers and groups look at it. A
// group says how its pages lie in the storages (PageLayout) and which namespace its chunks are in.
// Then Load() scatters chunks into blocks and Store() gathers blocks into chunks, many at a time,
// with one status a chunk.
//
// A chunk is stored with its layout's tag, so that a load through another layout is a miss
// (kFormatMismatch), not the right bytes in the wrong places.
//
// Thread safety: every method may be called from any thread. Memory: the blocks of an operation
// belong to it until it is done or Cancel() has returned; keeping an engine from reusing them
// before is the caller's part.

#ifndef PENSTOCK_CONNECTOR_CORE_PAGE_STORE_H_
#define PENSTOCK_CONNECTOR_CORE_PAGE_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/lib/client.h"
#include "common/base/gate.h"
#include "common/base/mutex.h"
#include "connector/core/page_layout.h"

namespace penstock {

struct PageStoreOptions {
  // A block that the engine never fills (often 0): refused in loads and stores.
  std::optional<BlockId> null_block;
};

struct PageChunk {
  uint32_t group = 0;  // From AddGroup().
  ChunkKey key;
  std::vector<BlockId> blocks;     // blocks_per_chunk of them; see kSkippedBlock.
  std::optional<ChunkKey> parent;  // Store: the chunk before this one, for retention.
  uint32_t token_count = 0;        // Store.
};

class PageOperation;

class PageStore {
 public:
  PageStore(std::shared_ptr<Client> client, const PageStoreOptions& options);
  // Calls Close().
  ~PageStore();
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  // Makes `bytes` of memory at `data` known, which must stay mapped and writable until Close(), and
  // returns its number. The same range again returns the same number. When the system refuses to
  // lock so much memory, the storage works without being registered, only slower on the ucx wire
  // (see unregistered_storages()). Errors: kInvalidArgument (empty, overlaps another storage),
  // kBadBuffer, kDisconnected (closed).
  Result<uint32_t> RegisterStorage(void* data, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the group's number. Errors: as PageLayout::Make(), kDisconnected (closed).
  Result<uint32_t> AddGroup(const Namespace& ns, uint32_t blocks_per_chunk,
                            std::span<const PageView> views) ABSL_LOCKS_EXCLUDED(mu_);

  // Lets go of a group and its namespace; its number may be given to another one. Loads and stores
  // that were started go on. Errors: kInvalidArgument (no such group).
  Status RemoveGroup(uint32_t group) ABSL_LOCKS_EXCLUDED(mu_);

  // The layout of a group; nothing when there is no such group.
  std::optional<PageLayout> layout(uint32_t group) const ABSL_LOCKS_EXCLUDED(mu_);

  // From the daemon into pages. One item a chunk, in the order given, whatever happens: kOk, kMiss,
  // kFormatMismatch (stored through another layout), kInvalidArgument (no such group, a block out
  // of range, the null block, a block that another chunk of the same load writes), and what
  // Client::Fetch() says. After anything but kOk the pages of that chunk hold anything.
  OperationPtr Load(std::span<const PageChunk> chunks, uint64_t reservation,
                    const Deadline& deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // From pages to the daemon. Items as for Load(), and what Client::Store() says.
  OperationPtr Store(std::span<const PageChunk> chunks, const Deadline& deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Cancels what is in flight, waits for it, gives the registrations back. Afterwards nothing here
  // touches the engine's memory; loads and stores come back as kDisconnected. Idempotent.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

  // Storages that the system refused to register, and why the last of them was.
  uint32_t unregistered_storages() const ABSL_LOCKS_EXCLUDED(mu_);
  Status last_registration_error() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Storage {
    StorageRange range;
    std::optional<uint64_t> registration;
  };
  struct Group {
    Namespace ns;
    PageLayout layout;
  };
  using GroupPtr = std::shared_ptr<const Group>;
  struct Plan;

  // The groups of `chunks`; null where there is no such group.
  std::vector<GroupPtr> GroupsOf(std::span<const PageChunk> chunks) const ABSL_LOCKS_EXCLUDED(mu_);
  // Checks every chunk and lists the pieces of the good ones.
  Plan MakePlan(std::span<const PageChunk> chunks, bool load) const ABSL_LOCKS_EXCLUDED(mu_);
  Status CheckChunk(const Group* group, const PageChunk& chunk, bool load) const;
  std::shared_ptr<Client> client() const ABSL_LOCKS_EXCLUDED(mu_);
  // Remembers `operation` for Close().
  void Remember(const std::shared_ptr<PageOperation>& operation) ABSL_LOCKS_EXCLUDED(mu_);

  const PageStoreOptions options_;
  Gate submitting_;  // Close() waits for loads and stores on their way to the client.

  Mutex close_mu_;  // Taken before mu_: a second Close() waits for the first.
  mutable Mutex mu_;
  std::shared_ptr<Client> client_ ABSL_GUARDED_BY(mu_);  // Null once closed.
  std::vector<Storage> storages_ ABSL_GUARDED_BY(mu_);
  std::vector<GroupPtr> groups_ ABSL_GUARDED_BY(mu_);  // Null where one was removed.
  uint32_t unregistered_ ABSL_GUARDED_BY(mu_) = 0;
  Status last_registration_error_ ABSL_GUARDED_BY(mu_);
  // Those that may still run; pruned whenever it has doubled.
  std::vector<std::weak_ptr<PageOperation>> in_flight_ ABSL_GUARDED_BY(mu_);
  size_t prune_at_ ABSL_GUARDED_BY(mu_) = 64;
};

}  // namespace penstock

#endif  // PENSTOCK_CONNECTOR_CORE_PAGE_STORE_H_
