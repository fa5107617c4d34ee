#include "common/keys/namespace.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "common/base/utf8.h"
#include "common/keys/namespace_fields.h"

namespace penstock {
namespace {

using internal::Extension;
using internal::kNamespaceFields;
using internal::NamespaceField;

constexpr uint32_t kMagic = 0x4E4B5350;  // "PSKN"
constexpr uint16_t kVersion = 1;
constexpr std::string_view kFingerprintDomain{"penstock.namespace.v1\0", 22};

Status Corrupt(std::string what) {
  return Status(Code::kCorruptMessage, fmt::format("namespace: {}", what));
}

void EncodeValue(const std::string& text, ByteWriter& out) { out.Append(AsBytes(text)); }
void EncodeValue(uint32_t number, ByteWriter& out) { out.U32(number); }
void EncodeValue(uint64_t number, ByteWriter& out) { out.U64(number); }
void EncodeValue(const Extension& extension, ByteWriter& out) {
  for (const auto& [name, value] : extension) {
    out.U32(static_cast<uint32_t>(name.size())).Append(AsBytes(name));
    out.U32(static_cast<uint32_t>(value.size())).Append(AsBytes(value));
  }
}

bool DecodeValue(ByteReader& in, std::string& text) {
  text = AsText(in.Take(in.remaining()));
  return in.AtEnd();
}
template <typename Number>
bool DecodeValue(ByteReader& in, Number& number) {
  number = in.Read<Number>();
  return in.AtEnd();
}
bool DecodeValue(ByteReader& in, Extension& extension) {
  while (in.ok() && !in.AtEnd()) {
    const std::string_view name = AsText(in.Take(in.U32()));
    const std::string_view value = AsText(in.Take(in.U32()));
    if (in.ok()) extension.emplace(name, value);
  }
  return in.ok();
}

const NamespaceField* FieldOfTag(uint16_t tag) {
  for (const NamespaceField& field : kNamespaceFields) {
    if (field.tag == tag) return &field;
  }
  return nullptr;
}

Status ValidateText(std::string_view field, std::string_view text) {
  if (text.size() > NamespaceDescriptor::kMaxText) {
    return Status(Code::kInvalidArgument, fmt::format("{}: {} bytes, want at most {}", field,
                                                      text.size(), NamespaceDescriptor::kMaxText));
  }
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{}: want UTF-8 without control characters", field));
    }
    text.remove_prefix(length);
  }
  return Status::Ok();
}

Status ValidateRank(std::string_view name, uint32_t rank, uint32_t size) {
  if (size > 0 && rank < size) return Status::Ok();
  return Status(
      Code::kInvalidArgument,
      fmt::format("{}_rank {} of {}_size {}: want a rank below the size", name, rank, name, size));
}

Status ValidateExtension(const Extension& extension) {
  if (extension.size() > NamespaceDescriptor::kMaxExtensions) {
    return Status(Code::kInvalidArgument,
                  fmt::format("extension: {} entries, want at most {}", extension.size(),
                              NamespaceDescriptor::kMaxExtensions));
  }
  for (const auto& [name, value] : extension) {
    if (name.empty()) return Status(Code::kInvalidArgument, "extension: an entry has no name");
    PENSTOCK_RETURN_IF_ERROR(ValidateText("extension name", name));
    PENSTOCK_RETURN_IF_ERROR(ValidateText("extension value", value));
  }
  return Status::Ok();
}

}  // namespace

std::vector<std::byte> NamespaceDescriptor::Encode() const {
  static const NamespaceDescriptor defaults;
  ByteWriter out;
  out.U32(kMagic).U16(kVersion);
  for (const NamespaceField& field : kNamespaceFields) {
    std::visit(
        [&](auto member) {
          if (this->*member == defaults.*member) return;
          out.U16(field.tag).U32(0);
          const size_t start = out.size();
          EncodeValue(this->*member, out);
          out.Patch(start - sizeof(uint32_t), static_cast<uint32_t>(out.size() - start));
        },
        field.member);
  }
  return out.Release();
}

Result<NamespaceDescriptor> NamespaceDescriptor::Decode(ByteSpan bytes) {
  if (bytes.size() > kMaxEncodedBytes) return Corrupt("too long");
  ByteReader in(bytes);
  if (in.U32() != kMagic) return Corrupt("no descriptor (magic)");
  const uint16_t version = in.U16();
  if (!in.ok()) return Corrupt("truncated");
  if (version != kVersion) {
    return Status(Code::kVersionSkew,
                  fmt::format("namespace version {}, this build reads {}", version, kVersion));
  }
  NamespaceDescriptor ns;
  while (!in.AtEnd()) {
    const uint16_t tag = in.U16();
    ByteReader value(in.Take(in.U32()));
    if (!in.ok()) return Corrupt("truncated");
    const NamespaceField* field = FieldOfTag(tag);
    if (field == nullptr) {
      return Status(Code::kVersionSkew, fmt::format("namespace field {} of a later build", tag));
    }
    const bool ok =
        std::visit([&](auto member) { return DecodeValue(value, ns.*member); }, field->member);
    if (!ok) return Corrupt(fmt::format("{}: wrong length", field->name));
  }
  // Order, duplicates and written-out defaults in one comparison.
  if (!std::ranges::equal(ns.Encode(), bytes)) return Corrupt("not canonical");
  if (const Status s = ns.Validate(); !s.ok()) return s.Annotate("namespace");
  return ns;
}

Fingerprint NamespaceDescriptor::FingerprintOf(ByteSpan encoding) {
  return Digest256::Sha256({AsBytes(kFingerprintDomain), encoding});
}

Fingerprint NamespaceDescriptor::ComputeFingerprint() const { return FingerprintOf(Encode()); }

Status NamespaceDescriptor::Validate() const {
  for (const NamespaceField& field : kNamespaceFields) {
    const auto* member = std::get_if<std::string NamespaceDescriptor::*>(&field.member);
    if (member != nullptr) PENSTOCK_RETURN_IF_ERROR(ValidateText(field.name, this->**member));
  }
  PENSTOCK_RETURN_IF_ERROR(ValidateRank("tp", tp_rank, tp_size));
  PENSTOCK_RETURN_IF_ERROR(ValidateRank("pp", pp_rank, pp_size));
  PENSTOCK_RETURN_IF_ERROR(ValidateRank("dcp", dcp_rank, dcp_size));
  const bool tokens_ok =
      block_tokens == 0 ? chunk_tokens == 0 : chunk_tokens > 0 && chunk_tokens % block_tokens == 0;
  if (!tokens_ok) {
    return Status(Code::kInvalidArgument,
                  fmt::format("chunk_tokens {} is not a multiple of block_tokens {}", chunk_tokens,
                              block_tokens));
  }
  return ValidateExtension(extension);
}

}  // namespace penstock
