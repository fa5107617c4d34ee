// Sizing: how large the arena is and how many sessions there may be, decided from what the operator
// asked for and what the machine allows, with the reasons in words.

#ifndef PENSTOCK_SERVER_DAEMON_MACHINE_SIZING_H_
#define PENSTOCK_SERVER_DAEMON_MACHINE_SIZING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/daemon/machine/machine.h"

namespace penstock {

// What the operator wishes for the arena.
struct ArenaWish {
  enum class Kind { kAuto, kBytes, kPercent };
  Kind kind = Kind::kAuto;
  uint64_t amount = 0;  // Bytes, or percent of the usable memory.

  // "auto", "25%", "12GiB" and the like. Errors: kInvalidArgument saying what was expected.
  static Result<ArenaWish> Parse(std::string_view text);
};

struct Sizing {
  uint64_t arena_bytes = 0;
  uint32_t max_sessions = 0;
  std::string arena_reason;           // One sentence: why this many bytes.
  std::vector<std::string> notes;     // Everything else that was chosen, one sentence each.
  std::vector<std::string> warnings;  // Works, but an operator should know.
};

// Sizes below this are refused: nothing useful fits.
inline constexpr uint64_t kMinArenaBytes = 16u << 20;
// Of the usable memory, when the wish is "auto": an engine on the same host needs the rest.
inline constexpr uint32_t kAutoArenaPercent = 25;
// Kept free beside the arena for the daemon itself: code, stacks, indices, socket buffers.
inline constexpr uint64_t kDaemonBytes = 256u << 20;
// Address space that the daemon needs besides the arena (thread stacks are mapped whole).
inline constexpr uint64_t kDaemonAddressSpace = uint64_t{1} << 30;
// Descriptors that the daemon needs besides sessions: listeners, logs, gRPC, metrics.
inline constexpr uint64_t kDaemonDescriptors = 64;
// Fewer sessions than this make no useful daemon.
inline constexpr uint32_t kMinSessions = 8;

// Decides. A wish for an amount is kept or refused, never cut; only "auto" and percent adapt.
// `descriptors_per_session` counts the control stream and the data streams.
// Errors: kResourceExhausted naming the limit, what is needed and what is allowed;
// kInvalidArgument for a wish below kMinArenaBytes.
Result<Sizing> DecideSizing(const Machine& machine, const ArenaWish& wish, uint32_t sessions_wish,
                            uint32_t descriptors_per_session);

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_MACHINE_SIZING_H_
