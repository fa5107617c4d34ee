#include "server/daemon/machine/sizing.h"

#include <algorithm>
#include <charconv>

#include "common/base/units.h"
#include "fmt/format.h"

namespace penstock {
namespace {

constexpr uint64_t kArenaRounding = 2u << 20;  // Whole transparent huge pages.

// The memory that is there for the arena, and the limit that says so.
struct Room {
  uint64_t bytes = 0;
  std::string limit;
};

Room MemoryRoom(const Machine& machine) {
  const uint64_t usable = machine.MemoryUsable();
  return {usable - std::min(usable, kDaemonBytes),
          usable < machine.memory_available
              ? fmt::format("the control group limit ({})", machine.cgroup_source)
              : std::string("the host's available memory")};
}

Room AddressRoom(const Machine& machine) {
  if (machine.address_space == kNoLimit) return {kNoLimit, "RLIMIT_AS"};
  const uint64_t taken = machine.address_space_used + kDaemonAddressSpace;
  return {machine.address_space - std::min(machine.address_space, taken), "RLIMIT_AS"};
}

Status NoRoom(uint64_t wanted, const Room& room) {
  return Status(Code::kResourceExhausted,
                fmt::format("an arena of {} does not fit: {} leaves {} for it", HumanBytes(wanted),
                            room.limit, HumanBytes(room.bytes)));
}

Status SizeArena(const Machine& machine, const ArenaWish& wish, Sizing& sizing) {
  const Room memory = MemoryRoom(machine);
  const Room address = AddressRoom(machine);
  const Room& least = memory.bytes <= address.bytes ? memory : address;
  if (wish.kind == ArenaWish::Kind::kBytes) {
    sizing.arena_bytes = wish.amount;
    sizing.arena_reason = fmt::format("arena of {}: asked for", HumanBytes(wish.amount));
    if (wish.amount < kMinArenaBytes) {
      return Status(Code::kInvalidArgument,
                    fmt::format("an arena of {} is too small: at least {} are needed",
                                HumanBytes(wish.amount), HumanBytes(kMinArenaBytes)));
    }
    return wish.amount > least.bytes ? NoRoom(wish.amount, least) : Status::Ok();
  }
  const uint64_t percent = wish.kind == ArenaWish::Kind::kAuto ? kAutoArenaPercent : wish.amount;
  const uint64_t usable = machine.MemoryUsable();
  const uint64_t share = usable / 100 * percent + usable % 100 * percent / 100;
  uint64_t bytes = std::min(share, least.bytes) / kArenaRounding * kArenaRounding;
  sizing.arena_reason = fmt::format(
      "arena of {}: {}{}% of the {} that this process could take now", HumanBytes(bytes),
      wish.kind == ArenaWish::Kind::kAuto ? "by default " : "", percent, HumanBytes(usable));
  if (bytes < share / kArenaRounding * kArenaRounding) {
    sizing.arena_reason += fmt::format(", cut because of {}", least.limit);
  }
  sizing.arena_bytes = bytes;
  return bytes < kMinArenaBytes ? NoRoom(kMinArenaBytes, {bytes, least.limit}) : Status::Ok();
}

Status SizeSessions(const Machine& machine, uint32_t wish, uint32_t descriptors_each,
                    Sizing& sizing) {
  sizing.max_sessions = wish;
  if (machine.descriptors == kNoLimit) return Status::Ok();
  const uint64_t left = machine.descriptors - std::min(machine.descriptors, kDaemonDescriptors);
  const uint64_t possible = left / std::max(descriptors_each, 1u);
  if (possible < kMinSessions) {
    return Status(Code::kResourceExhausted,
                  fmt::format("RLIMIT_NOFILE is {}: at least {} descriptors are needed ({} for the "
                              "daemon, {} for each of {} sessions)",
                              machine.descriptors,
                              kDaemonDescriptors + uint64_t{kMinSessions} * descriptors_each,
                              kDaemonDescriptors, descriptors_each, kMinSessions));
  }
  if (possible < wish) {
    sizing.max_sessions = static_cast<uint32_t>(possible);
    sizing.warnings.push_back(
        fmt::format("at most {} sessions instead of {}: RLIMIT_NOFILE is {} and a session may use "
                    "{} descriptors",
                    possible, wish, machine.descriptors, descriptors_each));
  }
  return Status::Ok();
}

void NoteMemlock(const Machine& machine, Sizing& sizing) {
  if (machine.memlock == kNoLimit || machine.may_lock_beyond_limit) return;
  if (machine.memlock >= sizing.arena_bytes) return;
  sizing.warnings.push_back(
      fmt::format("RLIMIT_MEMLOCK is {}, less than the arena: the ucx wire cannot register it with "
                  "an RDMA device (ulimit -l unlimited, or LimitMEMLOCK=infinity in a unit)",
                  HumanBytes(machine.memlock)));
}

}  // namespace

Result<ArenaWish> ArenaWish::Parse(std::string_view text) {
  if (text == "auto") return ArenaWish{};
  if (text.ends_with('%')) {
    uint64_t percent = 0;
    const char* const end = text.data() + text.size() - 1;
    const auto [stop, error] = std::from_chars(text.data(), end, percent);
    if (error != std::errc() || stop != end || percent < 1 || percent > 95) {
      return Status(
          Code::kInvalidArgument,
          fmt::format("'{}' is no arena size: a percentage is a whole number from 1 to 95", text));
    }
    return ArenaWish{Kind::kPercent, percent};
  }
  const auto bytes = ParseBytes(text);
  if (bytes.ok()) return ArenaWish{Kind::kBytes, *bytes};
  return Status(Code::kInvalidArgument,
                fmt::format("'{}' is no arena size: expected auto, a percentage of the usable "
                            "memory (25%), or an amount: {}",
                            text, bytes.status().message()));
}

Result<Sizing> DecideSizing(const Machine& machine, const ArenaWish& wish, uint32_t sessions_wish,
                            uint32_t descriptors_per_session) {
  Sizing sizing;
  PENSTOCK_RETURN_IF_ERROR(SizeArena(machine, wish, sizing));
  PENSTOCK_RETURN_IF_ERROR(SizeSessions(machine, sessions_wish, descriptors_per_session, sizing));
  NoteMemlock(machine, sizing);
  return sizing;
}

}  // namespace penstock
