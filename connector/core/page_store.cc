#include "connector/core/page_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "connector/core/page_operation.h"

namespace penstock {
namespace {

// A piece of memory that a chunk of a load writes.
struct Target {
  const std::byte* begin;
  const std::byte* end;
  uint32_t chunk;
};

// The chunks of a load that write where an earlier chunk, or they themselves, write too. What such
// a page held in the end would be a matter of luck.
std::vector<uint32_t> ChunksThatOverlap(std::vector<Target>& targets) {
  std::sort(targets.begin(), targets.end(), [](const Target& a, const Target& b) {
    return std::less<const std::byte*>()(a.begin, b.begin);
  });
  std::vector<uint32_t> bad;
  const Target* last = nullptr;  // Of those accepted, the one that ends last.
  for (const Target& target : targets) {
    if (last == nullptr || target.begin >= last->end) {
      last = &target;
      continue;
    }
    bad.push_back(std::max(last->chunk, target.chunk));
    if (target.chunk < last->chunk) last = &target;
  }
  return bad;
}

Status ClosedStatus() { return Status(Code::kDisconnected, "the page store is closed"); }

// An operation that is done, with the same result for every chunk.
OperationPtr AllFailed(size_t chunks, const Status& status) {
  return std::make_shared<PageOperation>(std::vector<ItemResult>(chunks, {.status = status}),
                                         std::vector<uint64_t>(chunks), PageScratch());
}

}  // namespace

// What became of the chunks of one load or store before anything was sent.
struct PageStore::Plan {
  std::vector<GroupPtr> groups;
  std::vector<ItemResult> items;           // kOk: to be sent.
  std::vector<uint64_t> expected_bytes;    // 0 when not to be sent.
  std::vector<std::vector<iovec>> pieces;  // Likewise empty.
  PageScratch scratch;                     // What skipped blocks are read into.

  // Takes out of a load what would write over another chunk of it.
  void RefuseOverlaps();
  std::shared_ptr<PageOperation> TakeOperation() {
    return std::make_shared<PageOperation>(std::move(items), std::move(expected_bytes),
                                           std::move(scratch));
  }
};

PageStore::PageStore(std::shared_ptr<Client> client, const PageStoreOptions& options)
    : options_(options), client_(std::move(client)) {}

PageStore::~PageStore() { Close(); }

std::shared_ptr<Client> PageStore::client() const {
  MutexLock lock(mu_);
  return client_;
}

Result<uint32_t> PageStore::RegisterStorage(void* data, uint64_t bytes) {
  auto* begin = static_cast<std::byte*>(data);
  if (begin == nullptr || bytes == 0 || reinterpret_cast<uintptr_t>(begin) + bytes < bytes) {
    return Status(Code::kInvalidArgument,
                  fmt::format("no storage has {} bytes at {}", bytes, data));
  }
  MutexLock lock(mu_);
  if (client_ == nullptr) return ClosedStatus();
  for (size_t i = 0; i < storages_.size(); ++i) {
    const StorageRange& other = storages_[i].range;
    if (other.data == begin && other.bytes == bytes) return static_cast<uint32_t>(i);
    if (begin < other.data + other.bytes && other.data < begin + bytes) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{} bytes at {} overlap storage {}: register a storage as a whole",
                                bytes, data, i));
    }
  }
  Storage storage{.range = {begin, bytes}, .registration = {}};
  Result<uint64_t> registration = client_->Register(data, bytes);
  if (registration.ok()) {
    storage.registration = *registration;
  } else if (registration.status().code() == Code::kResourceExhausted) {
    ++unregistered_;
    last_registration_error_ = registration.status();
  } else {
    return registration.status();
  }
  storages_.push_back(storage);
  return static_cast<uint32_t>(storages_.size() - 1);
}

Result<uint32_t> PageStore::AddGroup(const Namespace& ns, uint32_t blocks_per_chunk,
                                     std::span<const PageView> views) {
  MutexLock lock(mu_);
  if (client_ == nullptr) return ClosedStatus();
  std::vector<StorageRange> ranges;
  ranges.reserve(storages_.size());
  for (const Storage& storage : storages_) ranges.push_back(storage.range);
  PENSTOCK_ASSIGN_OR_RETURN(PageLayout layout, PageLayout::Make(ranges, blocks_per_chunk, views));
  auto group = std::make_shared<const Group>(Group{ns, std::move(layout)});
  const auto free = std::find(groups_.begin(), groups_.end(), nullptr);
  const auto number = static_cast<uint32_t>(free - groups_.begin());
  if (free != groups_.end()) {
    *free = std::move(group);
  } else {
    groups_.push_back(std::move(group));
  }
  return number;
}

Status PageStore::RemoveGroup(uint32_t group) {
  GroupPtr removed;  // Goes when the lock is free.
  MutexLock lock(mu_);
  if (group >= groups_.size() || groups_[group] == nullptr) {
    return Status(Code::kInvalidArgument, fmt::format("there is no group {}", group));
  }
  removed.swap(groups_[group]);
  return Status::Ok();
}

std::optional<PageLayout> PageStore::layout(uint32_t group) const {
  MutexLock lock(mu_);
  if (group >= groups_.size() || groups_[group] == nullptr) return std::nullopt;
  return groups_[group]->layout;
}

std::vector<PageStore::GroupPtr> PageStore::GroupsOf(std::span<const PageChunk> chunks) const {
  std::vector<GroupPtr> groups;
  groups.reserve(chunks.size());
  MutexLock lock(mu_);
  for (const PageChunk& chunk : chunks) {
    groups.push_back(chunk.group < groups_.size() ? groups_[chunk.group] : nullptr);
  }
  return groups;
}

Status PageStore::CheckChunk(const Group* group, const PageChunk& chunk, bool load) const {
  if (group == nullptr) {
    return Status(Code::kInvalidArgument, fmt::format("there is no group {}", chunk.group));
  }
  const PageLayout& layout = group->layout;
  if (chunk.blocks.size() != layout.blocks_per_chunk()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} blocks, a chunk of group {} has {}", chunk.blocks.size(),
                              chunk.group, layout.blocks_per_chunk()));
  }
  const auto skipped = std::count(chunk.blocks.begin(), chunk.blocks.end(), kSkippedBlock);
  if (load && static_cast<size_t>(skipped) == chunk.blocks.size()) {
    return Status(Code::kInvalidArgument, "no block of the chunk is wanted");
  }
  for (const BlockId block : chunk.blocks) {
    if (block == kSkippedBlock && load) continue;
    if (block < 0 || block >= layout.block_limit()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("block {} is not in 0..{}", block, layout.block_limit() - 1));
    }
    if (options_.null_block == block) {
      return Status(Code::kInvalidArgument, fmt::format("block {} is the null block", block));
    }
  }
  return Status::Ok();
}

PageStore::Plan PageStore::MakePlan(std::span<const PageChunk> chunks, bool load) const {
  Plan plan;
  plan.groups = GroupsOf(chunks);
  plan.items.resize(chunks.size());
  plan.expected_bytes.resize(chunks.size());
  plan.pieces.resize(chunks.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    const PageChunk& chunk = chunks[i];
    Status& status = plan.items[i].status;
    status = CheckChunk(plan.groups[i].get(), chunk, load);
    if (!status.ok()) continue;
    const PageLayout& layout = plan.groups[i]->layout;
    const auto skipped = std::count(chunk.blocks.begin(), chunk.blocks.end(), kSkippedBlock);
    std::byte* scratch = nullptr;
    if (skipped > 0) {
      scratch = plan.scratch.Add(static_cast<uint64_t>(skipped) * layout.block_bytes());
      if (scratch == nullptr) {
        status = Status(Code::kResourceExhausted, "no memory for the skipped blocks");
        continue;
      }
    }
    layout.AppendPieces(chunk.blocks, scratch, plan.pieces[i]);
    plan.expected_bytes[i] = layout.chunk_bytes();
  }
  if (load) plan.RefuseOverlaps();
  return plan;
}

void PageStore::Plan::RefuseOverlaps() {
  std::vector<Target> targets;
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (const iovec& piece : pieces[i]) {
      const auto* begin = static_cast<const std::byte*>(piece.iov_base);
      targets.push_back({begin, begin + piece.iov_len, static_cast<uint32_t>(i)});
    }
  }
  for (const uint32_t chunk : ChunksThatOverlap(targets)) {
    items[chunk].status = Status(Code::kInvalidArgument, "a block of the chunk is written twice");
    expected_bytes[chunk] = 0;
  }
}

void PageStore::Remember(const std::shared_ptr<PageOperation>& operation) {
  MutexLock lock(mu_);
  if (in_flight_.size() >= prune_at_) {
    std::erase_if(in_flight_, [](const std::weak_ptr<PageOperation>& weak) {
      const std::shared_ptr<PageOperation> alive = weak.lock();
      return alive == nullptr || alive->Done();
    });
    prune_at_ = std::max<size_t>(64, 2 * in_flight_.size());
  }
  in_flight_.push_back(operation);
}

OperationPtr PageStore::Load(std::span<const PageChunk> chunks, uint64_t reservation,
                             const Deadline& deadline) {
  const std::optional<Gate::Pass> pass = submitting_.TryEnter();
  if (!pass.has_value()) return AllFailed(chunks.size(), ClosedStatus());
  Plan plan = MakePlan(chunks, /*load=*/true);

  // A fetch has one tag, so the chunks of each layout travel in one of their own.
  std::map<uint64_t, std::vector<uint32_t>> by_tag;
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    if (plan.items[i].status.ok()) by_tag[plan.groups[i]->layout.tag()].push_back(i);
  }
  auto operation = plan.TakeOperation();
  const std::shared_ptr<Client> to = client();
  for (const auto& [tag, members] : by_tag) {
    for (size_t first = 0; first < members.size(); first += kMaxItems) {
      const size_t count = std::min<size_t>(kMaxItems, members.size() - first);
      std::vector<uint32_t> part(members.begin() + first, members.begin() + first + count);
      std::vector<FetchItem> items;
      items.reserve(count);
      for (const uint32_t i : part) {
        items.push_back({plan.groups[i]->ns, chunks[i].key, std::move(plan.pieces[i])});
      }
      const FetchOptions options{.reservation = reservation, .tag = tag};
      operation->AddPart(to->Fetch(std::move(items), options, deadline), std::move(part));
    }
  }
  Remember(operation);
  return operation;
}

OperationPtr PageStore::Store(std::span<const PageChunk> chunks, const Deadline& deadline) {
  const std::optional<Gate::Pass> pass = submitting_.TryEnter();
  if (!pass.has_value()) return AllFailed(chunks.size(), ClosedStatus());
  Plan plan = MakePlan(chunks, /*load=*/false);
  std::vector<uint32_t> good;
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    if (plan.items[i].status.ok()) good.push_back(i);
  }
  auto operation = plan.TakeOperation();
  const std::shared_ptr<Client> to = client();
  for (size_t first = 0; first < good.size(); first += kMaxItems) {
    const size_t count = std::min<size_t>(kMaxItems, good.size() - first);
    std::vector<uint32_t> part(good.begin() + first, good.begin() + first + count);
    std::vector<StoreItem> items;
    items.reserve(count);
    for (const uint32_t i : part) {
      const Group& group = *plan.groups[i];
      items.push_back({.ns = group.ns,
                       .key = chunks[i].key,
                       .pieces = std::move(plan.pieces[i]),
                       .parent = chunks[i].parent,
                       .token_count = chunks[i].token_count,
                       .segments = group.layout.segments(),
                       .tag = group.layout.tag()});
    }
    operation->AddPart(to->Store(std::move(items), /*replace=*/false, deadline), std::move(part));
  }
  Remember(operation);
  return operation;
}

void PageStore::Close() {
  MutexLock closing(close_mu_);
  submitting_.Close();
  std::shared_ptr<Client> from;
  std::vector<Storage> storages;
  std::vector<std::weak_ptr<PageOperation>> in_flight;
  {
    MutexLock lock(mu_);
    from = std::exchange(client_, nullptr);
    storages.swap(storages_);
    in_flight.swap(in_flight_);
  }
  for (const std::weak_ptr<PageOperation>& weak : in_flight) {
    if (const std::shared_ptr<PageOperation> operation = weak.lock()) operation->Cancel();
  }
  for (const Storage& storage : storages) {
    if (!storage.registration.has_value()) continue;
    // The memory is free of operations, and whether the daemon hears of it makes no difference.
    (void)from->Unregister(*storage.registration).ok();
  }
}

uint32_t PageStore::unregistered_storages() const {
  MutexLock lock(mu_);
  return unregistered_;
}

Status PageStore::last_registration_error() const {
  MutexLock lock(mu_);
  return last_registration_error_;
}

}  // namespace penstock
