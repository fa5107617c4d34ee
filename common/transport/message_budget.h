// MessageBudget: bounds the memory that messages of all sessions together take, half arrived or not
// yet sent. Without it, what one session may have would be multiplied by how many there may be.
//
// Thread safety: every method of the budget may be called from any thread; a share belongs to one.

#ifndef PENSTOCK_COMMON_TRANSPORT_MESSAGE_BUDGET_H_
#define PENSTOCK_COMMON_TRANSPORT_MESSAGE_BUDGET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace penstock {

class MessageBudget {
 public:
  // What a session has without asking: whoever sends and reads as he should is served, however much
  // others hold.
  static constexpr uint64_t kFreeBytes = 64u << 10;

  explicit MessageBudget(uint64_t max_bytes) : max_bytes_(max_bytes) {}
  MessageBudget(const MessageBudget&) = delete;
  MessageBudget& operator=(const MessageBudget&) = delete;

  // Beyond the free bytes of each session.
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  uint64_t max_bytes() const { return max_bytes_; }

  // One session's part. Gives it back when destroyed.
  class Share {
   public:
    // Without a budget nothing is bounded.
    explicit Share(std::shared_ptr<MessageBudget> budget) : budget_(std::move(budget)) {}
    ~Share() { Resize(0); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // The session has `bytes` now. False, and nothing is counted anew, if there is no room.
    bool Resize(uint64_t bytes) {
      const uint64_t wanted = bytes > kFreeBytes ? bytes - kFreeBytes : 0;
      if (budget_ == nullptr || wanted == held_) return true;
      if (wanted > held_ && !budget_->Take(wanted - held_)) return false;
      if (wanted < held_) budget_->bytes_.fetch_sub(held_ - wanted, std::memory_order_relaxed);
      held_ = wanted;
      return true;
    }

   private:
    const std::shared_ptr<MessageBudget> budget_;
    uint64_t held_ = 0;
  };

 private:
  bool Take(uint64_t more) {
    uint64_t now = bytes();
    do {
      if (now >= max_bytes_ || more > max_bytes_ - now) return false;
    } while (!bytes_.compare_exchange_weak(now, now + more, std::memory_order_relaxed));
    return true;
  }

  const uint64_t max_bytes_;
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_TRANSPORT_MESSAGE_BUDGET_H_
