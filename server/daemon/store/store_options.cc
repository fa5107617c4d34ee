#include "server/daemon/store/store_options.h"

#include <fmt/format.h>

#include <bit>

namespace penstock {
namespace {

template <typename T>
Status OutOfRange(const char* field, const T& value, const char* range) {
  return Status(Code::kInvalidArgument,
                fmt::format("store option {} is {}, it must be {}", field, value, range));
}

// Long enough for anybody, short enough never to overflow a point in time.
constexpr std::chrono::hours kLongestTtl{24 * 3660};
constexpr const char* kTtlRange = "greater than 0 and at most ten years, in nanoseconds";
bool IsTtl(Duration value) { return value > Duration::zero() && value <= kLongestTtl; }

bool IsFraction(double value) { return value >= 0 && value <= 1; }

}  // namespace

Status ChunkStoreOptions::Validate() const {
  if (arena.bytes == 0) return OutOfRange("arena.bytes", arena.bytes, "greater than 0");
  if (max_chunk_bytes > arena.bytes) {
    return OutOfRange("max_chunk_bytes", max_chunk_bytes, "at most arena.bytes");
  }
  if (!std::has_single_bit(granule_bytes) || granule_bytes < 64 || granule_bytes > 65536 ||
      granule_bytes > arena.bytes) {
    return OutOfRange("granule_bytes", granule_bytes, "a power of two from 64 to 65536");
  }
  if (max_extents < 1 || max_extents > 1024) {
    return OutOfRange("max_extents", max_extents, "from 1 to 1024");
  }
  if (!(headroom >= 0 && headroom <= 0.5)) return OutOfRange("headroom", headroom, "from 0 to 0.5");
  if (!IsFraction(max_pending)) return OutOfRange("max_pending", max_pending, "from 0 to 1");
  if (!IsFraction(max_reserved)) return OutOfRange("max_reserved", max_reserved, "from 0 to 1");
  if (!IsFraction(max_pinned)) return OutOfRange("max_pinned", max_pinned, "from 0 to 1");
  if (!IsFraction(max_pending_per_owner)) {
    return OutOfRange("max_pending_per_owner", max_pending_per_owner, "from 0 to 1");
  }
  if (!IsTtl(max_reservation_ttl)) {
    return OutOfRange("max_reservation_ttl", max_reservation_ttl.count(), kTtlRange);
  }
  if (!IsTtl(max_pin_ttl)) return OutOfRange("max_pin_ttl", max_pin_ttl.count(), kTtlRange);
  if (max_match_keys == 0) return OutOfRange("max_match_keys", max_match_keys, "greater than 0");
  if (!std::has_single_bit(index_shards) || index_shards > 1024) {
    return OutOfRange("index_shards", index_shards, "a power of two up to 1024");
  }
  if (!clock) return Status(Code::kInvalidArgument, "store option clock is not set");
  return Status::Ok();
}

}  // namespace penstock
