// The reading half of ChunkStore: Find, Match, Stat.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/daemon/store/chunk_entry.h"
#include "server/daemon/store/chunk_index.h"
#include "server/daemon/store/chunk_store.h"
#include "server/daemon/store/prefix_plan.h"
#include "server/daemon/store/store_parts.h"

namespace penstock {

void ChunkStore::CountLookup(Code code) {
  StoreCounters& counters = parts_->counters;
  Add(code == Code::kOk     ? counters.hits
      : code == Code::kMiss ? counters.misses
                            : counters.mismatches,
      1);
}

Result<ChunkRef> ChunkStore::Find(const ChunkKey& key, const ReadTerms& terms) {
  return std::move(FindMany({&key, 1}, terms).front());
}

std::vector<Result<ChunkRef>> ChunkStore::FindMany(std::span<const ChunkKey> keys,
                                                   const ReadTerms& terms) {
  std::vector<Result<ChunkRef>> results;
  results.reserve(keys.size());
  const uint64_t newest = parts_->Draw(keys.size());
  bool refresh = true;  // Whatever is behind a hole is of no use to a prompt.
  for (size_t i = 0; i < keys.size(); ++i) {
    ChunkRef found;
    const Code code = parts_->index.Read(keys[i], terms, [&](ChunkEntry& entry) {
      Ref(entry);
      found = ChunkRef(&entry);
      if (refresh) parts_->policy->Touch(entry, newest - i);
    });
    CountLookup(code);
    refresh = refresh && code == Code::kOk;
    if (code == Code::kOk) {
      results.emplace_back(std::move(found));
    } else {
      results.emplace_back(Status(code));
    }
  }
  return results;
}

Status ChunkStore::CheckGroups(std::span<const KeyGroup> groups,
                               const std::optional<ReserveRequest>& reserve) const {
  if (groups.empty()) return Status(Code::kInvalidArgument, "a match needs at least one group");
  const size_t count = groups[0].keys.size();
  for (const KeyGroup& group : groups) {
    if (group.keys.size() != count) {
      return Status(
          Code::kInvalidArgument,
          fmt::format("every group of a match needs as many keys as the first: {}, not {}", count,
                      group.keys.size()));
    }
  }
  if (count > parts_->options.max_match_keys / groups.size()) {
    return Status(Code::kTooLarge,
                  fmt::format("a match of {} groups of {} keys; the limit is {} keys",
                              groups.size(), count, parts_->options.max_match_keys));
  }
  if (reserve && reserve->ttl <= Duration::zero()) {
    return Status(Code::kInvalidArgument, "a reservation needs a time greater than 0");
  }
  return Status::Ok();
}

namespace {

// What one Match() finds out, group by group.
struct Findings {
  explicit Findings(std::span<const KeyGroup> asked, bool with_refs)
      : count(static_cast<uint32_t>(asked[0].keys.size())), bytes(asked.size()) {
    for (auto& of_group : bytes) of_group.resize(count);
    for (const KeyGroup& group : asked) windows.push_back(group.window);
    if (!with_refs) return;
    refs.resize(asked.size());
    for (auto& of_group : refs) of_group.resize(count);
  }

  uint32_t count;
  std::vector<uint32_t> windows;
  std::vector<std::vector<uint64_t>> bytes;
  std::vector<std::vector<ChunkRef>> refs;  // Empty unless they are to be reserved.
};

}  // namespace

Result<MatchResult> ChunkStore::Match(std::span<const KeyGroup> groups,
                                      const std::optional<ReserveRequest>& reserve) {
  PENSTOCK_RETURN_IF_ERROR(CheckGroups(groups, reserve));
  Findings found(groups, reserve.has_value());
  const uint64_t newest = parts_->Draw(groups.size() * found.count);
  // Chunk i of group g: the head is the most recent, and chunks of one place are neighbours.
  const auto moment = [&](size_t g, uint32_t i) { return newest - (i * groups.size() + g); };
  // A lone full group is found from its head, so whatever is found is part of the answer and can be
  // refreshed at once. A probe takes no references: then it could make chunks look used.
  const bool at_once = groups.size() == 1 && groups[0].window == 0;

  const uint32_t n = LongestPrefix(found.windows, found.count, [&](size_t g, uint32_t i) {
    return parts_->index.Read(groups[g].keys[i], groups[g].terms, [&](ChunkEntry& entry) {
      found.bytes[g][i] = entry.payload_bytes;
      if (at_once) parts_->policy->Touch(entry, moment(g, i));
      if (!reserve) return;
      Ref(entry);
      found.refs[g][i] = ChunkRef(&entry);
    }) == Code::kOk;
  });

  MatchResult result{.matched = n};
  std::vector<ChunkRef> to_reserve;
  for (size_t g = 0; g < groups.size(); ++g) {
    const uint32_t first = FirstNeeded(n, groups[g].window);
    std::vector<uint64_t>& bytes = found.bytes[g];
    bytes.resize(n);
    bytes.erase(bytes.begin(), bytes.begin() + first);
    result.groups.push_back({first, std::move(bytes)});
    for (uint32_t i = first; i < n && !at_once; ++i) {
      (void)parts_->index.Read(groups[g].keys[i], groups[g].terms, [&](ChunkEntry& entry) {
        parts_->policy->Touch(entry, moment(g, i));
      });
    }
    for (uint32_t i = first; i < n && reserve; ++i) {
      to_reserve.push_back(std::move(found.refs[g][i]));
    }
  }
  Add(parts_->counters.matches, 1);
  Add(parts_->counters.match_keys, groups.size() * found.count);
  Add(parts_->counters.matched_keys, groups.size() * n);
  if (reserve && n > 0) Reserve(*reserve, std::move(to_reserve), result);
  return result;
}

void ChunkStore::Reserve(const ReserveRequest& request, std::vector<ChunkRef> chunks,
                         MatchResult& result) {
  const MonotonicTime now = parts_->Now();
  (void)parts_->holds.Expire(now);
  const Duration ttl = std::min(request.ttl, parts_->options.max_reservation_ttl);
  Result<ReservationId> made = parts_->holds.Reserve(request.owner, now + ttl, std::move(chunks));
  if (made.ok()) {
    result.reservation = *made;
    result.reservation_ttl = ttl;
  } else {
    result.reserve_status = made.status();
  }
}

Result<ChunkRef> ChunkStore::Peek(const ChunkKey& key, const ReadTerms& terms) {
  ChunkRef chunk;
  const Code code = parts_->index.Read(key, terms, [&](ChunkEntry& entry) {
    Ref(entry);
    chunk = ChunkRef(&entry);
  });
  if (code != Code::kOk) return Status(code);
  return chunk;
}

Result<ChunkInfo> ChunkStore::Stat(const ChunkKey& key, const ReadTerms& terms) {
  PENSTOCK_ASSIGN_OR_RETURN(const ChunkRef chunk, Peek(key, terms));
  const uint64_t last_use = chunk.entry_->last_use.load(std::memory_order_relaxed);
  const MonotonicTime now = parts_->Now();
  (void)parts_->holds.Expire(now);
  ChunkInfo info;
  info.key = chunk.key();
  info.ns = chunk.ns();
  info.parent = chunk.parent();
  info.bytes = chunk.bytes();
  info.flags = chunk.manifest().flags;
  info.tag = chunk.manifest().tag;
  info.token_count = chunk.manifest().token_count;
  info.manifest.assign(chunk.encoded_manifest().begin(), chunk.encoded_manifest().end());
  info.extents = static_cast<uint32_t>(chunk.entry_->extents.size());
  info.children = parts_->policy->Children(key);
  if (const auto until = parts_->holds.PinnedUntil(chunk)) {
    info.pinned = true;
    info.pin_left = *until - now;
  }
  // But for the index, this very call, and the pin.
  const uint32_t ours = info.pinned ? 3 : 2;
  const uint32_t refs = chunk.entry_->refs.load(std::memory_order_relaxed);
  info.readers = refs > ours ? refs - ours : 0;
  const uint64_t ticks = parts_->Ticks();
  info.idle = Duration(ticks > last_use ? ticks - last_use : 0);
  return info;
}

}  // namespace penstock
