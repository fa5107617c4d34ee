// NamespaceDescriptor: everything that decides whether KV bytes are interchangeable.
//
// Two engines share chunks exactly when their descriptors are equal. The descriptor has one
// canonical encoding (docs/formats/namespace.md); its SHA-256 is the fingerprint that goes into
// every chunk key and that a reader must present. The encoding is kept by the daemon once per
// namespace, so that an operator can read what a fingerprint stands for.

#ifndef PENSTOCK_COMMON_KEYS_NAMESPACE_H_
#define PENSTOCK_COMMON_KEYS_NAMESPACE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/keys/chunk_key.h"

namespace penstock {

struct NamespaceDescriptor {
  std::string tenant;          // Whose chunks: isolation is by tenant first.
  std::string tenant_salt;     // Secret or not, changes every key of the tenant.
  std::string model;           // Name or path as the operator knows it.
  std::string model_revision;  // Fingerprint of weights and configuration.
  std::string kv_dtype;        // "bfloat16", "fp8_e4m3", ...
  std::string kv_scale_mode;   // "none", "per-tensor:<digest of scales>", ...
  std::string layout;          // Layout name and version, e.g. "vllm.LBHNC.v1".
  uint32_t block_tokens = 0;   // Tokens of one engine block.
  uint32_t chunk_tokens = 0;   // Tokens of one chunk: a multiple of block_tokens.
  uint32_t tp_rank = 0, tp_size = 1;
  uint32_t pp_rank = 0, pp_size = 1;
  uint32_t dcp_rank = 0, dcp_size = 1;
  uint32_t group = 0;               // KV group of a hybrid model.
  std::string group_kind;           // "full", "sliding:512", "mamba", ...
  std::string adapter;              // LoRA or other adapter, by content where it can be had.
  uint64_t adapter_generation = 0;  // Bumped when the adapter or weights change in place.
  // Whatever else decides the bytes: runner version, hash algorithm and seed, ...
  std::map<std::string, std::string> extension;

  // Canonical bytes: equal descriptors encode equally, different ones differently.
  std::vector<std::byte> Encode() const;
  // Rejects anything that Encode() would not have written (order, duplicates, sizes), so that one
  // namespace has one fingerprint.
  static Result<NamespaceDescriptor> Decode(ByteSpan bytes);

  Fingerprint ComputeFingerprint() const;
  // JSON, one member a field in the order above: for people and for `--json`.
  std::string ToJson() const;
  // Strings up to kMaxText, at most kMaxExtensions of them, sizes > 0, ranks below sizes,
  // chunk_tokens a multiple of block_tokens.
  Status Validate() const;

  static constexpr size_t kMaxText = 1024;
  static constexpr size_t kMaxExtensions = 64;

  friend bool operator==(const NamespaceDescriptor&, const NamespaceDescriptor&) = default;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_KEYS_NAMESPACE_H_
