// One measurement of libpenstock against a daemon that runs already. tests/bench/run.py puts many
// together, beside what they are compared with.
//
//   transfer_bench ADDRESS WIRE OPERATION CHUNK_BYTES SECONDS FOOTPRINT_BYTES [no-verify]
//
// OPERATION: fetch, store, match. Several operations are in flight, each of a batch of chunks.
// Prints one line of JSON.

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>

#include "client/lib/client.h"

namespace penstock {
namespace {

constexpr size_t kInFlight = 4;
constexpr uint64_t kBatchBytes = 4u << 20;
constexpr size_t kBatchItems = 64;
constexpr size_t kMatchKeys = 1000;

struct Arguments {
  std::string address, wire, operation;
  uint64_t chunk = 0;
  double seconds = 0;
  uint64_t footprint = 0;
  bool verify = true;
};

struct Bench {
  Arguments arguments;
  std::unique_ptr<Client> client;
  Namespace ns;
  std::byte* memory = nullptr;
  size_t slots = 0;  // Chunks that fit into the footprint.
  size_t batch = 0;
  uint64_t next = 0;  // Chunks asked for so far.
};

Deadline Patience() { return Deadline::After(std::chrono::seconds(60)); }

[[noreturn]] void Die(const Status& status) {
  std::fprintf(stderr, "transfer_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

iovec Slot(const Bench& bench, uint64_t i) {
  return {bench.memory + (i % bench.slots) * bench.arguments.chunk, bench.arguments.chunk};
}

ChunkKey Key(const Bench& bench, uint64_t i) {
  return NamedKey(bench.ns.fingerprint(), std::to_string(i));
}

OperationPtr StoreBatch(Bench& bench, uint64_t first_key) {
  std::vector<StoreItem> items(bench.batch);
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].ns = bench.ns;
    items[i].key = Key(bench, first_key + i);
    items[i].pieces = {Slot(bench, bench.next++)};
  }
  return bench.client->Store(std::move(items), true, Patience());
}

OperationPtr FetchBatch(Bench& bench) {
  std::vector<FetchItem> items(bench.batch);
  for (FetchItem& item : items) {
    item = {bench.ns, Key(bench, bench.next % bench.slots), {Slot(bench, bench.next)}};
    ++bench.next;
  }
  return bench.client->Fetch(std::move(items), {}, Patience());
}

void CheckDone(Operation& operation) {
  operation.Wait(Patience());
  if (!operation.status().ok()) Die(operation.status());
  for (const ItemResult& item : operation.items()) {
    if (!item.status.ok()) Die(item.status);
  }
}

// Fills the daemon with what will be fetched.
void Fill(Bench& bench) {
  std::deque<OperationPtr> flying;
  for (uint64_t i = 0; i < bench.slots; i += bench.batch) {
    flying.push_back(StoreBatch(bench, i));
    if (flying.size() < kInFlight) continue;
    CheckDone(*flying.front());
    flying.pop_front();
  }
  for (const auto& operation : flying) CheckDone(*operation);
  bench.next = 0;
}

std::vector<MatchGroup> MatchGroups(const Bench& bench) {
  MatchGroup group;
  group.ns = bench.ns;
  for (size_t i = 0; i < kMatchKeys; ++i) group.keys.push_back(Key(bench, i));
  return {group};
}

// Operations a second, with several always in flight.
double Measure(Bench& bench) {
  const auto groups =
      bench.arguments.operation == "match" ? MatchGroups(bench) : std::vector<MatchGroup>();
  uint64_t stored = bench.slots;
  const auto start_one = [&]() -> OperationPtr {
    if (bench.arguments.operation == "fetch") return FetchBatch(bench);
    if (bench.arguments.operation == "match") return bench.client->Match(groups, {}, Patience());
    stored += bench.batch;
    return StoreBatch(bench, stored - bench.batch);
  };
  std::deque<OperationPtr> flying;
  const Duration patience = std::chrono::nanoseconds(int64_t(bench.arguments.seconds * 1e9));
  uint64_t done = 0;
  bool warm = false;
  MonotonicTime start = MonotonicNow();
  for (;;) {
    while (flying.size() < kInFlight) flying.push_back(start_one());
    CheckDone(*flying.front());
    if (bench.arguments.operation == "match" && flying.front()->match().chunks != kMatchKeys) {
      Die(Status(Code::kInternal, "not everything was matched"));
    }
    flying.pop_front();
    ++done;
    const Duration elapsed = MonotonicNow() - start;
    if (!warm && elapsed > patience / 5) {
      warm = true;
      done = 0;
      start = MonotonicNow();
    } else if (warm && elapsed > patience) {
      break;
    }
  }
  const double seconds = std::chrono::duration<double>(MonotonicNow() - start).count();
  for (const auto& operation : flying) CheckDone(*operation);
  return static_cast<double>(done) / seconds;
}

int Main(int argc, char** argv) {
  if (argc < 7) return 2;
  Bench bench;
  Arguments& a = bench.arguments;
  a.address = argv[1];
  a.wire = argv[2];
  a.operation = argv[3];
  a.chunk = std::strtoull(argv[4], nullptr, 10);
  a.seconds = std::atof(argv[5]);
  a.footprint = std::strtoull(argv[6], nullptr, 10);
  a.verify = argc < 8;
  ClientOptions options;
  options.address = a.address;
  options.wire = a.wire;
  options.verify_checksums = a.verify;
  auto client = Client::Create(options);
  if (!client.ok()) Die(client.status());
  bench.client = std::move(client).value();
  if (!bench.client->WaitConnected(Patience())) {
    Die(Status(Code::kDisconnected, bench.client->stats().last_error));
  }
  NamespaceDescriptor descriptor;
  descriptor.tenant = "default";
  descriptor.model = fmt::format("bench-{}-{}", a.operation, a.chunk);
  bench.ns = *bench.client->OpenNamespace(descriptor);
  bench.slots =
      std::clamp<uint64_t>(a.footprint / a.chunk, a.operation == "match" ? kMatchKeys : 8, 16384);
  bench.batch = std::clamp<uint64_t>(kBatchBytes / a.chunk, 1, kBatchItems);
  void* memory = mmap(nullptr, bench.slots * a.chunk, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) Die(Status(Code::kResourceExhausted, "no memory"));
  madvise(memory, bench.slots * a.chunk, MADV_HUGEPAGE);
  bench.memory = static_cast<std::byte*>(memory);
  for (uint64_t i = 0; i < bench.slots * a.chunk; i += 512) bench.memory[i] = std::byte(i >> 9);
  if (a.operation != "store") Fill(bench);
  const double operations = Measure(bench);
  if (a.operation == "match") {
    std::printf("{\"keys_per_s\": %.0f, \"matches_per_s\": %.0f}\n", operations * kMatchKeys,
                operations);
  } else {
    const double chunks = operations * static_cast<double>(bench.batch);
    std::printf("{\"gb_per_s\": %.4f, \"chunks_per_s\": %.0f, \"wire\": \"%s\"}\n",
                chunks * static_cast<double>(a.chunk) / 1e9, chunks,
                bench.client->stats().wire.c_str());
  }
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
