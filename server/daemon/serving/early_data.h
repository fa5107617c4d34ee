// EarlyData: DATA of eager STOREs that overtook their request. Messages and data travel on
// different streams, so the bytes of a request may be there a moment before the request is; they
// are kept until it comes, within what one session and all together may have (EarlyBudget).
//
// Request ids of a session increase, and messages arrive in order: data with an id beyond every
// message so far may belong to a request that is still on its way; any other belongs to nothing.
//
// Thread safety: none; belongs to one session.

#ifndef PENSTOCK_SERVER_DAEMON_SERVING_EARLY_DATA_H_
#define PENSTOCK_SERVER_DAEMON_SERVING_EARLY_DATA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/bytes.h"
#include "common/transport/frame.h"
#include "common/transport/session.h"

namespace penstock {

// The bytes that all sessions of a daemon keep together. Thread-safe.
class EarlyBudget {
 public:
  explicit EarlyBudget(uint64_t max_bytes) : max_bytes_(max_bytes) {}
  bool TryTake(uint64_t bytes);
  void Return(uint64_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  const uint64_t max_bytes_;
  std::atomic<uint64_t> bytes_{0};
};

class EarlyData {
 public:
  static constexpr size_t kMaxFrames = 1024;

  // Keeps at most `max_bytes` at a time, which are taken from `all`, too; that outlives it.
  EarlyData(uint64_t max_bytes, EarlyBudget& all) : max_bytes_(max_bytes), all_(all) {}
  ~EarlyData() { all_.Return(bytes_); }
  EarlyData(const EarlyData&) = delete;
  EarlyData& operator=(const EarlyData&) = delete;

  struct Frame {
    DataHeader header;
    std::unique_ptr<std::byte[]> bytes;
    bool landed = false;
    bool disowned = false;
    Status status;
    ByteSpan span() const { return {bytes.get(), header.length}; }
  };

  // Memory for a frame of a request that may still come. False when there is no room; then the
  // request is remembered as one that has lost data.
  bool Locate(uint64_t request_id, const DataHeader& header, Pieces& pieces);
  // The sender gave up on a part of a request that may still come.
  void OnDataFailed(uint64_t request_id, const DataHeader& header);
  // A frame has landed. The frame, if it is one of Locate()'s and its request has come; empty if it
  // is kept, or is none of ours (see Holds()).
  std::optional<Frame> OnData(uint64_t request_id, const DataHeader& header, const Status& status);
  // Whether a frame that has not been given out is one of Locate()'s.
  bool Holds(uint64_t request_id, const DataHeader& header) const;

  struct Claimed {
    std::vector<Frame> landed;
    std::vector<DataHeader> on_their_way;  // OnData() will give them out.
    std::vector<DataHeader> failed;        // OnDataFailed() was called for them.
    bool lost = false;                     // Some of the data was thrown away.
  };
  // The request has come: gives out what it has.
  Claimed Claim(uint64_t request_id);
  // A frame that was claimed and is still on its way is not wanted after all.
  void Disown(uint64_t request_id, const DataHeader& header);
  // The request was abandoned on the session: its memory is free, and no OnData() will come.
  void Erase(uint64_t request_id);
  // A message with this id has arrived: data of earlier ids, and of this one unless it was claimed,
  // belongs to nothing. Memory that the wire still writes into stays until OnData().
  void Forget(uint64_t request_id);

  uint64_t bytes() const { return bytes_; }
  size_t frames() const { return frames_; }

 private:
  enum class State : uint8_t { kWaiting, kClaimed, kForgotten };
  struct Entry {
    std::vector<Frame> frames;
    std::vector<DataHeader> failed;
    State state = State::kWaiting;
    bool lost = false;
  };
  // The entry of `request_id`, which may be new; null when there are too many.
  Entry* EntryOf(uint64_t request_id);
  void Release(const Frame& frame);

  const uint64_t max_bytes_;
  EarlyBudget& all_;
  std::map<uint64_t, Entry> entries_;  // By request id. Bounded by kMaxFrames.
  uint64_t bytes_ = 0;
  size_t frames_ = 0;
  size_t failed_ = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_SERVING_EARLY_DATA_H_
