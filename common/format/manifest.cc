#include "common/format/manifest.h"

#include <fmt/format.h>

#include <utility>

#include "common/format/checksum.h"

namespace penstock {
namespace {

constexpr uint32_t kMagic = 0x4D4B5350;  // "PSKM"
constexpr uint16_t kVersion = 1;
constexpr size_t kChecksumOffset = 40;
constexpr uint64_t kMaxChunkBytes = uint64_t{1} << 63;
constexpr uint32_t kKnownFlags =
    kManifestLossy | kManifestQueryDependent | kManifestPositionFree | kManifestMutable;

struct Header {
  uint16_t header_bytes;
  uint16_t segment_stride;
  uint16_t segment_count;
  uint32_t position_count;
  uint32_t asset_count;
};

Status Corrupt(std::string what) {
  return Status(Code::kCorruptMessage, fmt::format("manifest: {}", what));
}

// The checksum covers the encoding with its own field as zeros.
uint64_t SelfChecksum(ByteSpan encoding) {
  static constexpr std::byte kZeros[sizeof(uint64_t)] = {};
  const auto piece = [](ByteSpan s) {
    return iovec{const_cast<std::byte*>(s.data()), s.size()};  // NOLINT: iovec has no const form
  };
  const iovec pieces[] = {piece(encoding.first(kChecksumOffset)), piece(kZeros),
                          piece(encoding.subspan(kChecksumOffset + sizeof(uint64_t)))};
  return PlainChecksum(pieces);
}

// Everything about the header that can be wrong, and the fields that say where the rest lies.
Result<Header> DecodeHeader(ByteSpan bytes, Manifest& m) {
  ByteReader in(bytes);
  if (in.U32() != kMagic) return Corrupt("no manifest (magic)");
  const uint16_t version = in.U16();
  Header h{};
  h.header_bytes = in.U16();
  const uint32_t total = in.U32();
  h.segment_stride = in.U16();
  h.segment_count = in.U16();
  m.flags = in.U32();
  m.token_count = in.U32();
  m.tag = in.U64();
  h.position_count = in.U32();
  h.asset_count = in.U32();
  const uint64_t checksum = in.U64();
  if (!in.ok()) return Corrupt("truncated");
  if (version != kVersion) {
    return Status(Code::kVersionSkew,
                  fmt::format("manifest version {}, this build reads {}", version, kVersion));
  }
  if (total != bytes.size()) {
    return Corrupt(fmt::format("says {} bytes, has {}", total, bytes.size()));
  }
  if (checksum != SelfChecksum(bytes)) return Corrupt("checksum mismatch");
  if (h.header_bytes < Manifest::kHeaderBytes) return Corrupt("header too short");
  if (h.segment_stride < Manifest::kSegmentBytes) return Corrupt("segments too short");
  const uint64_t needed = uint64_t{h.header_bytes} + uint64_t{h.segment_stride} * h.segment_count +
                          sizeof(uint32_t) * uint64_t{h.position_count} +
                          Digest256::kBytes * uint64_t{h.asset_count};
  if (needed > bytes.size()) return Corrupt("counts exceed its length");
  return h;
}

Segment DecodeSegment(ByteSpan bytes) {
  ByteReader in(bytes);
  Segment s;
  s.kind = static_cast<SegmentKind>(in.U8());
  in.U8();
  s.codec = in.U16();
  s.layer_first = in.U16();
  s.layer_count = in.U16();
  s.logical_bytes = in.U64();
  s.stored_bytes = in.U64();
  s.checksum = in.U64();
  return s;
}

// a + b <= kMaxChunkBytes - 1, computed without overflow.
bool AddWithin(uint64_t& sum, uint64_t more) {
  if (more >= kMaxChunkBytes - sum) return false;
  sum += more;
  return true;
}

}  // namespace

uint64_t Manifest::TotalStoredBytes() const {
  uint64_t total = 0;
  for (const Segment& s : segments) total += s.stored_bytes;
  return total;
}

Manifest Manifest::Plain(uint64_t payload_bytes, uint64_t checksum, uint32_t token_count) {
  Manifest m;
  m.token_count = token_count;
  m.segments.push_back(
      {.logical_bytes = payload_bytes, .stored_bytes = payload_bytes, .checksum = checksum});
  return m;
}

Status Manifest::Validate() const {
  const auto bad = [](std::string what) { return Status(Code::kInvalidArgument, std::move(what)); };
  if (segments.empty() || segments.size() > kMaxSegments) {
    return bad(fmt::format("{} segments, want 1 to {}", segments.size(), kMaxSegments));
  }
  uint64_t stored = 0, logical = 0;
  for (const Segment& s : segments) {
    if (!AddWithin(stored, s.stored_bytes) || !AddWithin(logical, s.logical_bytes)) {
      return bad("lengths of segments add up to 2^63 or more");
    }
    if (uint32_t{s.layer_first} + s.layer_count > (1u << 16)) return bad("layers beyond 2^16");
  }
  if (!positions.empty() && positions.size() != token_count) {
    return bad(fmt::format("{} positions for {} tokens", positions.size(), token_count));
  }
  if (EncodedBytes() > kMaxEncodedBytes) {
    return bad(fmt::format("{} bytes, want at most {}", EncodedBytes(), kMaxEncodedBytes));
  }
  if (const uint32_t unknown = flags & kManifestCriticalFlags & ~kKnownFlags; unknown != 0) {
    return Status(Code::kVersionSkew, fmt::format("unknown critical flags {:#x}", unknown));
  }
  return Status::Ok();
}

size_t Manifest::EncodedBytes() const {
  return kHeaderBytes + kSegmentBytes * segments.size() + sizeof(uint32_t) * positions.size() +
         Digest256::kBytes * assets.size();
}

void Manifest::EncodeTo(ByteWriter& out) const {
  const size_t start = out.size();
  out.U32(kMagic).U16(kVersion).U16(kHeaderBytes);
  out.U32(static_cast<uint32_t>(EncodedBytes()));
  out.U16(kSegmentBytes).U16(static_cast<uint16_t>(segments.size()));
  out.U32(flags).U32(token_count).U64(tag);
  out.U32(static_cast<uint32_t>(positions.size())).U32(static_cast<uint32_t>(assets.size()));
  out.U64(0);  // The checksum, below.
  for (const Segment& s : segments) {
    out.U8(static_cast<uint8_t>(s.kind)).U8(0).U16(s.codec).U16(s.layer_first).U16(s.layer_count);
    out.U64(s.logical_bytes).U64(s.stored_bytes).U64(s.checksum);
  }
  out.Append(std::as_bytes(std::span(positions)));
  for (const Digest256& asset : assets) out.Append(asset.span());
  out.Patch(start + kChecksumOffset, PlainChecksum(out.bytes().subspan(start)));
}

std::vector<std::byte> Manifest::Encode() const {
  ByteWriter out;
  out.Reserve(EncodedBytes());
  EncodeTo(out);
  return out.Release();
}

Result<Manifest> Manifest::Decode(ByteSpan bytes) {
  if (bytes.size() > kMaxEncodedBytes) return Corrupt("too long");
  Manifest m;
  PENSTOCK_ASSIGN_OR_RETURN(const Header h, DecodeHeader(bytes, m));
  ByteReader in(bytes.subspan(h.header_bytes));
  m.segments.reserve(h.segment_count);
  for (size_t i = 0; i < h.segment_count; ++i) {
    m.segments.push_back(DecodeSegment(in.Take(h.segment_stride)));
  }
  m.positions.resize(h.position_count);
  for (uint32_t& position : m.positions) position = in.U32();
  m.assets.resize(h.asset_count);
  for (Digest256& asset : m.assets) asset = in.Read<Digest256>();
  if (!in.ok()) return Corrupt("truncated");
  if (const Status s = m.Validate(); !s.ok()) {
    return s.code() == Code::kVersionSkew ? s.Annotate("manifest") : Corrupt(s.message());
  }
  return m;
}

}  // namespace penstock
