// A writer that stops in mid-store: stores half of a chunk, stops itself (SIGSTOP), and goes on if
// it is continued. Exits with the number of the status that the item got, or 100 when it could not
// begin.
//
//   daemon_writer ADDRESS WIRE NAME BYTES VERSION DEADLINE_MS

#include <csignal>
#include <string>

#include "tests/integration/daemon_raw_client.h"

namespace penstock {
namespace {

int Main(char** argv) {
  const auto address = Address::Parse(argv[1]);
  if (!address.ok()) return 100;
  auto client = RawClient::Connect({.address = *address, .wire = argv[2]});
  if (!client.ok()) return 100;
  const ChunkKey key = (*client)->Key(argv[3]);
  const std::string bytes =
      TellingBytes(key, static_cast<uint32_t>(std::stoul(argv[5])), std::stoull(argv[4]));
  StoreBuilder store((*client)->fingerprint());
  store.Add(key, bytes);
  store.request.deadline_ms = static_cast<uint32_t>(std::stoul(argv[6]));
  const uint64_t id = (*client)->Send(MessageType::kStore, store.Encode());
  const auto grant = (*client)->TakeGrant(id);
  if (!grant.ok() || grant->at(0) != Code::kOk) return 100;
  const size_t half = bytes.size() / 2;
  (*client)->SendBytes(id, 0, 0, std::string_view(bytes).substr(0, half));
  // An answer to anything shows that what was sent before has been read.
  if ((*client)->Match({key}).status().code() == Code::kDisconnected) return 100;
  raise(SIGSTOP);
  (*client)->SendBytes(id, 0, half, std::string_view(bytes).substr(half));
  const auto statuses = (*client)->TakeStatuses(id);
  return static_cast<int>(statuses.ok() ? statuses->at(0) : statuses.status().code());
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return argc == 7 ? penstock::Main(argv) : 100; }
