// ChunkKey: the 256-bit name of one chunk, and how it is derived.
//
// key = SHA-256( "penstock.chunk.v1\0" | form (1 byte) | namespace fingerprint (32) | identity )
//
// The namespace fingerprint is inside the digest, so that bytes of another model, dtype, rank or
// tenant have another name. docs/formats/keys.md is the normative text; golden values are in
// tests/unit/keys_test.cc.

#ifndef PENSTOCK_COMMON_KEYS_CHUNK_KEY_H_
#define PENSTOCK_COMMON_KEYS_CHUNK_KEY_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "common/keys/digest.h"

namespace penstock {

using Fingerprint = Digest256;  // Of a namespace (common/keys/namespace.h).
using ChunkKey = Digest256;

// What the identity of a chunk is made of. Numbers are part of the format.
enum class KeyForm : uint8_t {
  kPrefix = 1,   // Chain: parent key + what the chunk's tokens are.
  kContent = 2,  // Reserved: a position-independent segment of text, image or video.
  kSession = 3,  // Reserved: append-only log of an agent or stream, named.
  kNamed = 4,    // An operator's object under a readable name.
};

// A chunk of a prompt. `parent` is the key of the chunk before it, empty for the first one.
// `identity` is everything that tells this chunk's tokens from others with the same parent: the
// engine's own block hash (preferred, it covers adapters, images and salts), or PrefixTokens().
// identity = 0x00 or (0x01 | parent (32)) | length of `identity` (u32) | `identity`
ChunkKey PrefixKey(const Fingerprint& ns, const std::optional<ChunkKey>& parent, ByteSpan identity);

// The same, for an identity that is a list of token ids: each as u32, little-endian.
ChunkKey PrefixTokensKey(const Fingerprint& ns, const std::optional<ChunkKey>& parent,
                         std::span<const uint32_t> tokens);

// An object with a name. identity = length of `name` (u32) | `name`
ChunkKey NamedKey(const Fingerprint& ns, std::string_view name);

}  // namespace penstock

#endif  // PENSTOCK_COMMON_KEYS_CHUNK_KEY_H_
