// The work of `penstock bench`: random fetches and stores of self-describing values, and an oracle
// that knows which of them may come back.
//
// The values of one key have versions; only one thread stores a key, any may fetch it. A fetch may
// miss at any time and fail with a named error, but bytes that it delivers must be whole, of a
// version that was stored under that key, and no older than one that had been committed before the
// fetch began.

#ifndef PENSTOCK_CLIENT_CLI_BENCH_WORKLOAD_H_
#define PENSTOCK_CLIENT_CLI_BENCH_WORKLOAD_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/cli/bench/latency.h"
#include "client/lib/client.h"
#include "common/base/mutex.h"

namespace penstock::cli {

struct WorkloadOptions {
  uint64_t keys = 2000;
  uint64_t min_bytes = 64;
  uint64_t max_bytes = 1 << 20;
  uint32_t batch = 8;  // Most items of one operation.
  uint32_t store_percent = 40;
  uint32_t drop_percent = 1;
  uint32_t cancel_percent = 1;  // Operations that are cancelled on their way.
  uint32_t threads = 4;
  Duration deadline = std::chrono::seconds(2);
  uint64_t seed = 1;
};

// What happened, by one thread or by all.
struct WorkloadTotals {
  Latency fetch, store;
  uint64_t operations = 0, cancelled = 0;  // Without those that failed as a whole.
  uint64_t hits = 0, misses = 0, stored = 0;
  uint64_t fetched_bytes = 0, stored_bytes = 0;
  uint64_t wrong = 0;  // Values that must not have been delivered.
  std::array<uint64_t, kCodeCount> errors{};

  void Add(const WorkloadTotals& other);
};

class Workload {
 public:
  Workload(const WorkloadOptions& options, Client& client, Namespace ns);

  // Works until `stop`. From one thread for each `thread` in [0, options.threads).
  void Run(uint32_t thread, const std::atomic<bool>& stop);
  // Gives the daemon its room back, as far as it is there. When no thread runs.
  void DropAll();

  // So far; exact when no thread runs.
  WorkloadTotals totals() const;
  // The first wrong values, described.
  std::vector<std::string> complaints() const;
  const std::atomic<uint64_t>& operations() const { return operations_; }
  const std::atomic<uint64_t>& wrong() const { return wrong_; }
  const std::atomic<uint64_t>& bytes() const { return bytes_; }

 private:
  class Worker;
  // What the oracle knows of one key.
  struct KeyState {
    std::atomic<uint64_t> attempted{0};  // Newest version that was ever sent.
    std::atomic<uint64_t> committed{0};  // Newest version that the daemon said it has.
  };

  uint64_t RoomOf(uint64_t key) const;
  uint64_t BytesOf(uint64_t key, uint64_t version) const;
  uint64_t HashOf(uint64_t key) const;
  void Complain(std::string what);

  const WorkloadOptions options_;
  Client& client_;
  const Namespace ns_;
  std::vector<ChunkKey> chunk_keys_;
  std::unique_ptr<KeyState[]> states_;
  std::atomic<uint64_t> operations_{0}, wrong_{0}, bytes_{0};

  mutable Mutex mu_;
  WorkloadTotals totals_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> complaints_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLIENT_CLI_BENCH_WORKLOAD_H_
