#include "client/cli/bench/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "client/cli/self_describing.h"

namespace penstock::cli {
namespace {

constexpr std::byte kPoison{0xA5};
constexpr size_t kGuard = 64;
// Versions differ in length by less than this.
constexpr uint64_t kSpread = 61;
constexpr size_t kMaxComplaints = 20;

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

void WorkloadTotals::Add(const WorkloadTotals& other) {
  fetch.Add(other.fetch);
  store.Add(other.store);
  operations += other.operations;
  cancelled += other.cancelled;
  hits += other.hits;
  misses += other.misses;
  stored += other.stored;
  fetched_bytes += other.fetched_bytes;
  stored_bytes += other.stored_bytes;
  wrong += other.wrong;
  for (size_t i = 0; i < errors.size(); ++i) errors[i] += other.errors[i];
}

// One thread's share: its buffers, its random numbers, its counts.
class Workload::Worker {
 public:
  Worker(Workload& workload, uint32_t thread)
      : w_(workload), thread_(thread), random_(workload.options_.seed * 1000 + thread) {}

  void Step();

  WorkloadTotals totals;

 private:
  uint64_t Draw(uint64_t end) { return random_() % end; }
  bool Percent(uint32_t percent) { return Draw(100) < percent; }
  std::byte* Slot(size_t i, uint64_t bytes);
  // Waits for the operation, or cancels it at a random moment.
  void Finish(Operation& operation);
  bool Worked(const Operation& operation);
  void CountError(const Status& status) {
    ++totals.errors[std::min<size_t>(static_cast<size_t>(status.code()), kCodeCount - 1)];
  }
  void Fetch(size_t count);
  void Judge(uint64_t key, uint64_t committed, const std::byte* slot, uint64_t room,
             const ItemResult& result);
  void Store(size_t count);
  void Drop();

  Workload& w_;
  const uint32_t thread_;
  std::mt19937_64 random_;
  std::vector<std::vector<std::byte>> slots_;
};

std::byte* Workload::Worker::Slot(size_t i, uint64_t bytes) {
  if (slots_.size() <= i) slots_.resize(i + 1);
  if (slots_[i].size() < bytes) slots_[i].resize(bytes);
  return slots_[i].data();
}

void Workload::Worker::Step() {
  const size_t count = 1 + Draw(w_.options_.batch);
  if (Percent(w_.options_.drop_percent)) {
    Drop();
  } else if (Percent(w_.options_.store_percent)) {
    Store(count);
  } else {
    Fetch(count);
  }
}

// Counts an operation that was not refused or lost as a whole: what fails at once is no speed.
bool Workload::Worker::Worked(const Operation& operation) {
  if (operation.status().ok() || operation.status().code() == Code::kCancelled) {
    ++totals.operations;
    w_.operations_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  if (operation.status().code() == Code::kDisconnected) {
    w_.client_.WaitConnected(Deadline::After(std::chrono::milliseconds(100)));
  }
  return false;
}

void Workload::Worker::Finish(Operation& operation) {
  if (Percent(w_.options_.cancel_percent)) {
    operation.Wait(Deadline::After(std::chrono::microseconds(Draw(2000))));
    operation.Cancel();
    ++totals.cancelled;
  }
  operation.Wait(Deadline::After(Deadline::kMax));
}

void Workload::Worker::Fetch(size_t count) {
  struct Wanted {
    uint64_t key, committed, room;
    std::byte* slot;
  };
  std::vector<Wanted> wanted;
  std::vector<FetchItem> items;
  for (size_t i = 0; i < count; ++i) {
    Wanted one;
    one.key = Draw(w_.options_.keys);
    one.committed = w_.states_[one.key].committed.load();
    one.room = w_.RoomOf(one.key);
    one.slot = Slot(i, one.room + 2 * kGuard);
    std::fill_n(one.slot, one.room + 2 * kGuard, kPoison);
    items.push_back({w_.ns_, w_.chunk_keys_[one.key], {{one.slot + kGuard, one.room}}});
    wanted.push_back(one);
  }
  const MonotonicTime start = MonotonicNow();
  const auto fetch = w_.client_.Fetch(std::move(items), {}, Deadline::After(w_.options_.deadline));
  Finish(*fetch);
  const Duration took = MonotonicNow() - start;
  if (Worked(*fetch)) totals.fetch.Add(took);
  for (size_t i = 0; i < count; ++i) {
    Judge(wanted[i].key, wanted[i].committed, wanted[i].slot, wanted[i].room, fetch->items()[i]);
  }
}

void Workload::Worker::Judge(uint64_t key, uint64_t committed, const std::byte* slot, uint64_t room,
                             const ItemResult& result) {
  const auto complain = [&](const std::string& what) {
    ++totals.wrong;
    w_.Complain(fmt::format("key {}: {}", key, what));
  };
  const auto poisoned = [](std::byte b) { return b == kPoison; };
  if (!std::all_of(slot, slot + kGuard, poisoned) ||
      !std::all_of(slot + kGuard + room, slot + 2 * kGuard + room, poisoned)) {
    complain("bytes were written outside of the buffer");
  }
  if (result.status.code() == Code::kMiss) {
    ++totals.misses;
    return;
  }
  if (!result.status.ok()) return CountError(result.status);
  ++totals.hits;
  totals.fetched_bytes += result.bytes;
  w_.bytes_.fetch_add(result.bytes, std::memory_order_relaxed);
  const ValueVerdict verdict = CheckValue(w_.HashOf(key), {slot + kGuard, result.bytes});
  if (verdict.kind != ValueVerdict::Kind::kOk) return complain(verdict.Describe());
  if (verdict.version == 0 || verdict.version > w_.states_[key].attempted.load()) {
    return complain(fmt::format("version {} was never stored", verdict.version));
  }
  if (result.bytes != w_.BytesOf(key, verdict.version)) {
    return complain(fmt::format("version {} has {} bytes, not {}", verdict.version,
                                w_.BytesOf(key, verdict.version), result.bytes));
  }
  if (verdict.version < committed) {
    complain(fmt::format("version {} after {} was committed", verdict.version, committed));
  }
}

void Workload::Worker::Store(size_t count) {
  const uint64_t threads = w_.options_.threads;
  std::vector<std::pair<uint64_t, uint64_t>> versions;  // Key, version.
  std::vector<StoreItem> items;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t key = Draw(w_.options_.keys / threads) * threads + thread_;
    const auto same = [key](const auto& version) { return version.first == key; };
    if (std::any_of(versions.begin(), versions.end(), same)) continue;  // Order within is open.
    const uint64_t version = ++w_.states_[key].attempted;
    const uint64_t bytes = w_.BytesOf(key, version);
    std::byte* slot = Slot(versions.size(), bytes);
    FillValue(w_.HashOf(key), version, {slot, bytes});
    StoreItem item;
    item.ns = w_.ns_;
    item.key = w_.chunk_keys_[key];
    item.pieces = {{slot, bytes}};
    items.push_back(std::move(item));
    versions.emplace_back(key, version);
  }
  const MonotonicTime start = MonotonicNow();
  const auto store =
      w_.client_.Store(std::move(items), true, Deadline::After(w_.options_.deadline));
  Finish(*store);
  const Duration took = MonotonicNow() - start;
  if (Worked(*store)) totals.store.Add(took);
  for (size_t i = 0; i < versions.size(); ++i) {
    const auto [key, version] = versions[i];
    const Status& status = store->items()[i].status;
    if (!status.ok()) {
      CountError(status);
      continue;
    }
    ++totals.stored;
    totals.stored_bytes += w_.BytesOf(key, version);
    w_.bytes_.fetch_add(w_.BytesOf(key, version), std::memory_order_relaxed);
    w_.states_[key].committed.store(version);
  }
}

void Workload::Worker::Drop() {
  const auto drop = w_.client_.Drop(w_.ns_, {w_.chunk_keys_[Draw(w_.options_.keys)]},
                                    Deadline::After(w_.options_.deadline));
  drop->Wait(Deadline::After(Deadline::kMax));
  Worked(*drop);
  const Status& status = drop->items()[0].status;
  if (!status.ok() && status.code() != Code::kMiss) CountError(status);
}

Workload::Workload(const WorkloadOptions& options, Client& client, Namespace ns)
    : options_(options), client_(client), ns_(std::move(ns)) {
  states_ = std::make_unique<KeyState[]>(options_.keys);
  for (uint64_t key = 0; key < options_.keys; ++key) {
    chunk_keys_.push_back(NamedKey(ns_.fingerprint(), fmt::format("bench-{}", key)));
  }
}

// Lengths are spread evenly over their logarithm: as many of 4 to 8 KiB as of 4 to 8 MiB.
uint64_t Workload::RoomOf(uint64_t key) const {
  const double low = std::log(static_cast<double>(options_.min_bytes + kSpread));
  const double high =
      std::log(static_cast<double>(std::max(options_.max_bytes, options_.min_bytes + kSpread)));
  const double at = static_cast<double>(Mix(key + options_.seed) >> 11) / 9007199254740992.0;
  return static_cast<uint64_t>(std::exp(low + at * (high - low)));
}

uint64_t Workload::BytesOf(uint64_t key, uint64_t version) const {
  return std::max<uint64_t>(RoomOf(key) - Mix(version) % kSpread, kMinValueBytes);
}

uint64_t Workload::HashOf(uint64_t key) const { return Mix(key * 2 + 1 + options_.seed); }

void Workload::Run(uint32_t thread, const std::atomic<bool>& stop) {
  Worker worker(*this, thread);
  while (!stop.load(std::memory_order_relaxed)) worker.Step();
  MutexLock lock(mu_);
  totals_.Add(worker.totals);
}

void Workload::DropAll() {
  constexpr size_t kAtOnce = 1000;
  for (size_t first = 0; first < chunk_keys_.size(); first += kAtOnce) {
    const auto begin = chunk_keys_.begin() + static_cast<std::ptrdiff_t>(first);
    const size_t count = std::min(kAtOnce, chunk_keys_.size() - first);
    const auto drop = client_.Drop(ns_, {begin, begin + static_cast<std::ptrdiff_t>(count)},
                                   Deadline::After(options_.deadline));
    drop->Wait(Deadline::After(Deadline::kMax));
    if (drop->status().code() == Code::kDisconnected) return;  // Its memory is gone as well.
  }
}

WorkloadTotals Workload::totals() const {
  MutexLock lock(mu_);
  return totals_;
}

std::vector<std::string> Workload::complaints() const {
  MutexLock lock(mu_);
  return complaints_;
}

void Workload::Complain(std::string what) {
  wrong_.fetch_add(1);
  MutexLock lock(mu_);
  if (complaints_.size() < kMaxComplaints) complaints_.push_back(std::move(what));
}

}  // namespace penstock::cli
