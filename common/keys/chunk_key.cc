#include "common/keys/chunk_key.h"

namespace penstock {
namespace {

constexpr std::string_view kDomain{"penstock.chunk.v1\0", 18};

ChunkKey Derive(KeyForm form, const Fingerprint& ns, ByteSpan head, ByteSpan identity) {
  const std::byte form_byte{static_cast<uint8_t>(form)};
  const auto size = static_cast<uint32_t>(identity.size());
  return Digest256::Sha256({AsBytes(kDomain), ByteSpan(&form_byte, 1), ns.span(), head,
                            std::as_bytes(std::span(&size, 1)), identity});
}

}  // namespace

ChunkKey PrefixKey(const Fingerprint& ns, const std::optional<ChunkKey>& parent,
                   ByteSpan identity) {
  std::array<std::byte, 1 + Digest256::kBytes> head{};
  if (!parent) return Derive(KeyForm::kPrefix, ns, ByteSpan(head).first(1), identity);
  head[0] = std::byte{1};
  std::memcpy(head.data() + 1, parent->bytes.data(), Digest256::kBytes);
  return Derive(KeyForm::kPrefix, ns, head, identity);
}

ChunkKey PrefixTokensKey(const Fingerprint& ns, const std::optional<ChunkKey>& parent,
                         std::span<const uint32_t> tokens) {
  return PrefixKey(ns, parent, std::as_bytes(tokens));
}

ChunkKey NamedKey(const Fingerprint& ns, std::string_view name) {
  return Derive(KeyForm::kNamed, ns, {}, AsBytes(name));
}

}  // namespace penstock
