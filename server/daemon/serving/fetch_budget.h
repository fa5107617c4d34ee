// FetchBudget: bounds the bytes of chunks that fetches hold, in all and for each session, so that
// clients which ask for much and read slowly cannot keep the arena from everybody else. A chunk
// that several fetches hold counts once: it takes its room once.
//
// A session may have half of it, and three quarters where what it fetches is kept by a reservation
// or a pin: that stays anyway, and an engine's long prefix, which it has just reserved, comes
// through.
//
// Thread safety: every method may be called from any thread.

#ifndef PENSTOCK_SERVER_DAEMON_SERVING_FETCH_BUDGET_H_
#define PENSTOCK_SERVER_DAEMON_SERVING_FETCH_BUDGET_H_

#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/daemon/store/chunk_ref.h"

namespace penstock {

class FetchBudget {
 public:
  // The right to hold one chunk. Gives it back when destroyed. Move-only; must not outlive the
  // budget, nor the last ChunkRef of its fetch.
  class [[nodiscard]] Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)),
          session_(other.session_),
          chunk_(other.chunk_),
          bytes_(other.bytes_) {}
    Hold& operator=(Hold other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(session_, other.session_);
      std::swap(chunk_, other.chunk_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Hold() {
      if (budget_ != nullptr) budget_->Return(session_, chunk_, bytes_);
    }

   private:
    friend class FetchBudget;
    Hold(FetchBudget* budget, uint64_t session, const void* chunk, uint64_t bytes)
        : budget_(budget), session_(session), chunk_(chunk), bytes_(bytes) {}
    FetchBudget* budget_ = nullptr;
    uint64_t session_ = 0;
    const void* chunk_ = nullptr;
    uint64_t bytes_ = 0;
  };

  explicit FetchBudget(uint64_t max_bytes) : max_bytes_(max_bytes) {}
  FetchBudget(const FetchBudget&) = delete;
  FetchBudget& operator=(const FetchBudget&) = delete;

  // One chunk, however large, is always allowed where nothing is held. Errors: kBusy.
  Result<Hold> Take(uint64_t session, const ChunkRef& chunk) ABSL_LOCKS_EXCLUDED(mu_);

  // Of all chunks that are held, each once.
  uint64_t bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Share {
    // Whether `more` bytes of a chunk fit.
    bool HasRoom(const void* chunk, uint64_t more, uint64_t limit) const;
    void Add(const void* chunk, uint64_t more);
    void Remove(const void* chunk, uint64_t less);

    uint64_t bytes = 0;
    absl::flat_hash_map<const void*, uint64_t> holds;  // How many of each chunk.
  };

  void Return(uint64_t session, const void* chunk, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  const uint64_t max_bytes_;

  mutable Mutex mu_;
  Share all_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Share> sessions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock

#endif  // PENSTOCK_SERVER_DAEMON_SERVING_FETCH_BUDGET_H_
