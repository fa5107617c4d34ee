// Fetch and store: from the caller's items to calls, on the caller's thread.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "client/lib/client_impl.h"
#include "common/format/checksum.h"

namespace penstock {
namespace {

// What one call may hold. Small enough that calls of one operation overlap, and that no answer,
// with its manifests, comes near FrameHeader::kMaxBodyBytes.
constexpr size_t kItemsPerCall = 1024;
constexpr uint64_t kFetchBytesPerCall = 256u << 20;
constexpr uint64_t kStoreBytesPerCall = 16u << 20;
constexpr size_t kManifestBytesPerCall = 2u << 20;
// Longer values than this wrap sums.
constexpr uint64_t kMaxValueBytes = uint64_t{1} << 62;

// Fills calls with items until one is full.
class Filler {
 public:
  explicit Filler(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // True if an item still fits into the current call; else the next call begins with it.
  bool Add(const Fingerprint& ns, uint64_t bytes, size_t manifest_bytes) {
    const bool fits = items_ < kItemsPerCall && namespaces_.Fits(ns) &&
                      (items_ == 0 || (bytes_ + bytes <= max_bytes_ &&
                                       manifest_bytes_ + manifest_bytes <= kManifestBytesPerCall));
    if (!fits) *this = Filler(max_bytes_);
    namespaces_.Add(ns);
    ++items_;
    bytes_ += bytes;
    manifest_bytes_ += manifest_bytes;
    return fits;
  }

 private:
  uint64_t max_bytes_;
  NamespaceList namespaces_;
  size_t items_ = 0;
  uint64_t bytes_ = 0;
  size_t manifest_bytes_ = 0;
};

// Checks one item's memory and makes it addressable. Errors: kBadBuffer, kInvalidArgument.
Result<PieceMap> TakePieces(std::vector<iovec> pieces, MemoryMap::Look& look) {
  PENSTOCK_RETURN_IF_ERROR(look.Check(pieces));
  uint64_t total = 0;
  for (const iovec& piece : pieces) {
    total += piece.iov_len;
    if (total > kMaxValueBytes) return Status(Code::kInvalidArgument, "pieces are too long");
  }
  return PieceMap(std::move(pieces));
}

// The lowest and the highest address of what the items name.
template <typename Items>
std::pair<uintptr_t, uintptr_t> Hull(const Items& items) {
  uintptr_t begin = std::numeric_limits<uintptr_t>::max(), end = 0;
  for (const auto& item : items) {
    for (const iovec& piece : item.pieces) {
      const auto at = reinterpret_cast<uintptr_t>(piece.iov_base);
      begin = std::min(begin, at);
      end = std::max(end, at + piece.iov_len);
    }
  }
  return {begin, end};
}

Status OfItem(size_t i, const ChunkKey& key, const Status& status) {
  return status.Annotate(fmt::format("item {}, chunk {}", i, key.ToShortHex()));
}

// Completes the segments of an item: one over everything when the caller names none.
// Error: kInvalidArgument.
Status FillSegments(std::vector<Segment>& segments, uint64_t total) {
  if (segments.empty()) {
    segments.push_back({.logical_bytes = total, .stored_bytes = total});
    return Status::Ok();
  }
  if (segments.size() > Manifest::kMaxSegments) {
    return Status(Code::kTooLarge,
                  fmt::format("{} segments, at most {}", segments.size(), Manifest::kMaxSegments));
  }
  uint64_t sum = 0;
  for (const Segment& segment : segments) {
    if (segment.stored_bytes > total - sum) {
      return Status(Code::kInvalidArgument,
                    fmt::format("the segments are longer than the {} bytes given", total));
    }
    sum += segment.stored_bytes;
  }
  if (sum == total) return Status::Ok();
  return Status(Code::kInvalidArgument,
                fmt::format("the segments add up to {} of the {} bytes given", sum, total));
}

}  // namespace

void ClientImpl::HoldRegistrations(OperationState& operation, uintptr_t begin, uintptr_t end) {
  MutexLock lock(mu_);
  for (const auto& [id, registration] : registrations_) {
    if (registration->end <= begin || registration->begin >= end) continue;
    if (std::optional<Gate::Pass> pass = registration->gate.TryEnter()) {
      operation.Hold(registration, *std::move(pass));
    }
  }
}

Result<PieceMap> ClientImpl::TakeRoom(FetchItem& item, MemoryMap::Look& look) const {
  if (!item.ns.valid()) return Status(Code::kInvalidArgument, "no namespace");
  PENSTOCK_RETURN_IF_ERROR(book_->Refusal(item.ns));
  return TakePieces(std::move(item.pieces), look);
}

OperationPtr ClientImpl::Fetch(std::vector<FetchItem> items, const FetchOptions& options,
                               const Deadline& deadline, OnDone on_done) {
  Status refused;
  const OperationRef operation = NewOperation(OperationState::Kind::kFetch, items.size(), deadline,
                                              std::move(on_done), refused);
  if (!refused.ok()) return Refuse(operation, refused);
  auto plan = std::make_shared<FetchPlan>();
  plan->reservation = options.reservation;
  plan->tag = options.tag;
  plan->accept_inexact = options.accept_inexact;
  plan->verify = options_.verify_checksums;
  plan->encoded_selection = options.selection;
  plan->on_checksum_failure = [this](const Fingerprint& ns, const ChunkKey& key) {
    ReportDamage(ns, key);
  };
  if (!options.selection.empty()) {
    Result<Selection> selection = Selection::Decode(options.selection);
    if (!selection.ok()) return Refuse(operation, selection.status().Annotate("selection"));
    plan->selection = *selection;
  }

  const auto [begin, end] = Hull(items);
  HoldRegistrations(*operation, begin, end);
  MemoryMap::Look look(memory_, MemoryMap::Access::kWrite);
  Filler filler(kFetchBytesPerCall);
  std::vector<std::vector<FetchCall::Target>> groups;
  for (size_t i = 0; i < items.size(); ++i) {
    FetchItem& item = items[i];
    Result<PieceMap> room = TakeRoom(item, look);
    if (!room.ok()) {
      operation->mutable_items()[i].status = OfItem(i, item.key, room.status());
      continue;
    }
    if (!filler.Add(item.ns.fingerprint(), room->total(), 0) || groups.empty())
      groups.emplace_back();
    groups.back().push_back({.key = item.key,
                             .ns = item.ns.fingerprint(),
                             .room = std::move(room).value(),
                             .result = i});
  }
  for (FetchItem& item : items) operation->namespaces.push_back(std::move(item.ns));
  std::vector<std::shared_ptr<Call>> calls;
  calls.reserve(groups.size());
  for (auto& group : groups) {
    calls.push_back(std::make_shared<FetchCall>(operation, plan, std::move(group)));
  }
  Launch(operation);
  AddCalls(operation, std::move(calls));
  return Launched(operation);
}

// The checksums are made here and now: what is stored is what the memory held at the time of the
// call, or nothing.
Result<StoreCall::Source> ClientImpl::TakeSource(StoreItem& item, MemoryMap::Look& look) const {
  if (!item.ns.valid()) return Status(Code::kInvalidArgument, "no namespace");
  PENSTOCK_RETURN_IF_ERROR(book_->Refusal(item.ns));
  PENSTOCK_ASSIGN_OR_RETURN(PieceMap bytes, TakePieces(std::move(item.pieces), look));
  PENSTOCK_RETURN_IF_ERROR(FillSegments(item.segments, bytes.total()));
  Manifest manifest;
  manifest.flags = item.manifest_flags;
  manifest.token_count = item.token_count;
  manifest.tag = item.tag;
  uint64_t offset = 0;
  for (Segment& segment : item.segments) {
    Pieces pieces;
    bytes.Slice(offset, segment.stored_bytes, pieces);
    segment.checksum = ChunkChecksum(item.key, pieces);
    offset += segment.stored_bytes;
    manifest.segments.push_back(segment);
  }
  PENSTOCK_RETURN_IF_ERROR(manifest.Validate());
  return StoreCall::Source{.key = item.key,
                           .ns = item.ns.fingerprint(),
                           .bytes = std::move(bytes),
                           .manifest = manifest.Encode(),
                           .parent = item.parent,
                           .result = 0};
}

OperationPtr ClientImpl::Store(std::vector<StoreItem> items, bool replace, const Deadline& deadline,
                               OnDone on_done) {
  Status refused;
  const OperationRef operation = NewOperation(OperationState::Kind::kStore, items.size(), deadline,
                                              std::move(on_done), refused);
  if (!refused.ok()) return Refuse(operation, refused);
  const auto [begin, end] = Hull(items);
  HoldRegistrations(*operation, begin, end);
  // Before the first call is on its way: then the operation belongs to the loop.
  for (const StoreItem& item : items) operation->namespaces.push_back(item.ns);
  Launch(operation);

  // Each call is on its way while the checksums of the next one are made.
  MemoryMap::Look look(memory_, MemoryMap::Access::kRead);
  Filler filler(kStoreBytesPerCall);
  std::vector<StoreCall::Source> sources;
  const auto add_call = [&] {
    if (sources.empty()) return;
    AddCalls(operation, {std::make_shared<StoreCall>(operation, table_->store_queue(), replace,
                                                     std::exchange(sources, {}))});
  };
  for (size_t i = 0; i < items.size(); ++i) {
    Result<StoreCall::Source> source =
        deadline.Expired() ? Status(Code::kDeadlineExceeded) : TakeSource(items[i], look);
    if (!source.ok()) {
      operation->mutable_items()[i].status = OfItem(i, items[i].key, source.status());
      continue;
    }
    source->result = i;
    if (!filler.Add(source->ns, source->bytes.total(), source->manifest.size())) add_call();
    sources.push_back(std::move(source).value());
  }
  add_call();
  return Launched(operation);
}

}  // namespace penstock
