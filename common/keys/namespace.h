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
#include <string_view>
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

  // Canonical bytes: equal descriptors encode equally, different ones differently. A field at its
  // default is left out, so that a field added later changes no fingerprint where it is not used.
  std::vector<std::byte> Encode() const;
  // Rejects anything that Encode() would not have written (order, duplicates, sizes, defaults), so
  // that one namespace has one fingerprint, and what Validate() rejects. Errors: kCorruptMessage,
  // kVersionSkew (a version or a field of a later build), kInvalidArgument.
  static Result<NamespaceDescriptor> Decode(ByteSpan bytes);

  Fingerprint ComputeFingerprint() const;
  // The same from an encoding, also from one that this build cannot decode.
  static Fingerprint FingerprintOf(ByteSpan encoding);

  enum class Salt { kHide, kShow };
  // JSON on one line, one member a field in the order above: for people and for `--json`. A hidden
  // salt is replaced by the member "tenant_salt_digest", which FromJson() refuses.
  std::string ToJson(Salt salt = Salt::kHide) const;
  // An object with any of the fields; the others keep their defaults. Error: kInvalidArgument, with
  // the member (and the nearest known name), for unknown or repeated members, wrong types, numbers
  // out of range, and what Validate() rejects.
  static Result<NamespaceDescriptor> FromJson(std::string_view json);

  // Texts are UTF-8 without control characters, up to kMaxText bytes; at most kMaxExtensions
  // extensions, with names; sizes > 0; ranks below sizes; chunk_tokens a multiple of block_tokens
  // (both 0 where chunks are not made of tokens). Error: kInvalidArgument, naming the field.
  Status Validate() const;

  static constexpr size_t kMaxText = 1024;
  static constexpr size_t kMaxExtensions = 64;
  // No valid descriptor encodes to more.
  static constexpr size_t kMaxEncodedBytes = 160 * 1024;

  friend bool operator==(const NamespaceDescriptor&, const NamespaceDescriptor&) = default;
};

}  // namespace penstock

#endif  // PENSTOCK_COMMON_KEYS_NAMESPACE_H_
