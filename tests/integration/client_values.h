// Chunks for client tests: a namespace, keys, values, and memory that shows who wrote to it.

#ifndef PENSTOCK_TESTS_INTEGRATION_CLIENT_VALUES_H_
#define PENSTOCK_TESTS_INTEGRATION_CLIENT_VALUES_H_

#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "client/lib/client.h"
#include "common/format/checksum.h"
#include "common/protocol/messages.h"

namespace penstock {

inline Deadline Soon(int seconds = 30) { return Deadline::After(std::chrono::seconds(seconds)); }

inline NamespaceDescriptor TestDescriptor(const std::string& model = "test-model") {
  NamespaceDescriptor descriptor;
  descriptor.tenant = "default";
  descriptor.model = model;
  descriptor.kv_dtype = "bfloat16";
  descriptor.layout = "test.v1";
  descriptor.block_tokens = 16;
  descriptor.chunk_tokens = 256;
  return descriptor;
}

// Every byte depends on its place and on `seed`.
inline std::string Value(size_t bytes, uint32_t seed) {
  std::string value(bytes, '\0');
  uint32_t state = seed * 2654435761u + 12345;
  for (char& c : value) {
    state = state * 1664525 + 1013904223;
    c = static_cast<char>(state >> 24);
  }
  return value;
}

inline iovec Piece(std::string& bytes) { return {bytes.data(), bytes.size()}; }

// A destination between guards, filled with a pattern that no value is likely to have.
class Landing {
 public:
  static constexpr size_t kGuard = 64;
  static constexpr char kPoison = static_cast<char>(0xA5);

  explicit Landing(size_t bytes) : memory_(bytes + 2 * kGuard, kPoison) {}

  iovec piece() { return {memory_.data() + kGuard, size()}; }
  size_t size() const { return memory_.size() - 2 * kGuard; }
  std::string_view view() const { return std::string_view(memory_).substr(kGuard, size()); }
  bool Untouched() const { return view() == std::string(size(), kPoison); }
  bool GuardsIntact() const {
    const std::string guard(kGuard, kPoison);
    return memory_.substr(0, kGuard) == guard && memory_.substr(memory_.size() - kGuard) == guard;
  }

 private:
  std::string memory_;
};

inline Manifest PlainManifest(const ChunkKey& key, std::string_view value) {
  return Manifest::Plain(value.size(), ChunkChecksum(key, AsBytes(value)), 256);
}

// What a fetch of `values` is answered with when all is well.
struct FetchAnswer {
  FetchReply reply;
  std::vector<std::vector<std::byte>> manifests;

  void Add(const ChunkKey& key, std::string_view value) {
    manifests.push_back(PlainManifest(key, value).Encode());
    reply.items.push_back({.status = Code::kOk, .payload_bytes = value.size()});
    for (size_t i = 0, m = 0; i < reply.items.size(); ++i) {
      if (reply.items[i].status == Code::kOk) reply.items[i].manifest = manifests[m++];
    }
  }
  void Add(Code code, uint64_t bytes = 0) {
    reply.items.push_back({.status = code, .payload_bytes = bytes});
  }
};

inline FetchItem ToFetch(const Namespace& ns, const ChunkKey& key, Landing& landing) {
  return {ns, key, {landing.piece()}};
}

inline StoreItem ToStore(const Namespace& ns, const ChunkKey& key, std::string& value) {
  StoreItem item;
  item.ns = ns;
  item.key = key;
  item.pieces = {Piece(value)};
  return item;
}

}  // namespace penstock

#endif  // PENSTOCK_TESTS_INTEGRATION_CLIENT_VALUES_H_
