// A client that is interrupted in the middle of everything: memory registered, fetches and a store
// under way, a reservation held. Stops itself (SIGSTOP) there; if it is continued, it waits for its
// operations and exits with 0 when each of them has ended and no byte was wrong, else with the
// number of the step that went wrong.
//
//   client_victim ADDRESS WIRE CHUNK_BYTES

#include <csignal>
#include <string>
#include <vector>

#include "tests/integration/client_values.h"

namespace penstock {
namespace {

constexpr size_t kChunks = 12;

int Main(char** argv) {
  const size_t bytes = std::stoull(argv[3]);
  ClientOptions options;
  options.address = argv[1];
  options.wire = argv[2];
  options.name = "victim";
  auto client = Client::Create(options);
  if (!client.ok() || !(*client)->WaitConnected(Soon())) return 1;
  const auto ns = (*client)->OpenNamespace(TestDescriptor("victims"));
  if (!ns.ok()) return 2;
  std::string memory((kChunks + 1) * bytes, '\0');
  if (!(*client)->Register(memory.data(), memory.size()).ok()) return 3;
  std::vector<ChunkKey> keys;
  std::vector<OperationPtr> fetches;
  for (size_t i = 0; i < kChunks; ++i) {
    keys.push_back(NamedKey(ns->fingerprint(), std::to_string(i)));
    std::string value = Value(bytes, static_cast<uint32_t>(i));
    const auto store = (*client)->Store({ToStore(*ns, keys[i], value)}, false, Soon());
    if (!store->Wait(Soon(60))) return 4;
    const Code code = store->items()[0].status.code();
    if (code != Code::kOk && code != Code::kAlreadyExists) return 5;
  }
  const auto match = (*client)->Match({{*ns, keys}}, std::chrono::minutes(5), Soon());
  if (!match->Wait(Soon(60)) || match->match().reservation == 0) return 6;
  std::string other = Value(bytes, 4711);
  const auto store =
      (*client)->Store({ToStore(*ns, NamedKey(ns->fingerprint(), "half"), other)}, true, Soon(600));
  for (size_t i = 0; i < kChunks; ++i) {
    fetches.push_back(
        (*client)->Fetch({{*ns, keys[i], {{memory.data() + i * bytes, bytes}}}}, {}, Soon(600)));
  }
  raise(SIGSTOP);
  for (size_t i = 0; i < kChunks; ++i) {
    if (!fetches[i]->Wait(Soon(60))) return 7;
    if (!fetches[i]->items()[0].status.ok()) continue;
    if (memory.compare(i * bytes, bytes, Value(bytes, static_cast<uint32_t>(i))) != 0) return 8;
  }
  return store->Wait(Soon(60)) ? 0 : 9;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return argc == 4 ? penstock::Main(argv) : 100; }
